// A compiled gRPC backend for the bench of the adapter: it answers as fast as its machine allows, so that what is
// measured is the adapter. Every PredictStream gets the same messages, each in a write of its own.
//
//	backend 39
//
// says its port, and serves until it is ended. Only the standard library: gRPC is HTTP/2 with a length before each message.
package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
)

// message frames a protobuf message whose field 1 are these bytes: Reply.message, and Result.message too.
func message(text string, more ...byte) []byte {
	body := append(append([]byte{0x0a, byte(len(text))}, text...), more...)
	framed := make([]byte, 5, 5+len(body))
	binary.BigEndian.PutUint32(framed[1:], uint32(len(body)))
	return append(framed, body...)
}

func main() {
	count, err := strconv.Atoi(os.Args[1])
	if err != nil {
		panic(err)
	}
	one := map[string][]byte{
		"/backend.Backend/Health":    message("OK"),
		"/backend.Backend/LoadModel": message("loaded", 0x10, 1),
	}
	handler := func(out http.ResponseWriter, in *http.Request) {
		io.Copy(io.Discard, in.Body)
		out.Header().Set("Content-Type", "application/grpc")
		out.Header().Set("Trailer", "Grpc-Status")
		if reply, known := one[in.URL.Path]; known {
			out.Write(reply)
		} else {
			for number := 1; number <= count; number++ {
				out.Write(message(fmt.Sprintf("word%d ", number), 0x10, byte(number)))
				out.(http.Flusher).Flush()
			}
		}
		out.Header().Set("Grpc-Status", "0")
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	server := http.Server{Handler: http.HandlerFunc(handler), Protocols: new(http.Protocols)}
	server.Protocols.SetUnencryptedHTTP2(true)
	panic(server.Serve(listener))
}
