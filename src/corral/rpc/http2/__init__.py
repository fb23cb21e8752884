"""HTTP/2 as a client of gRPC needs it: cleartext, on the event loop, nothing pushed. HPACK is a library's."""
