/* An engine and a load generator that cost next to nothing, so that what is between them gets measured.
 *
 *   native engine PORT                  answers POSTs with a stream of 33 writes; says "ready PORT" on standard output
 *   native load PORT CLIENTS SECONDS KIND   asks in a closed loop; prints one line of JSON
 *
 * KIND is a word that the engine finds in the body of a request: `stream` (event by event, as fast as it goes), `burst`
 * (all events in one write), `paced` (an event every 20 ms, each with the time at which it was written; clients begin
 * one after another, and the first answer on each connection is not measured), `hold` (one event, then silence; the
 * load generator waits until it is ended). One thread each, Linux only.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { EVENTS = 32, MAX_FD = 8192, BUFFER = 16384, PACE_MS = 20, PACED_EVENTS = 12 };

struct peer {
    int open, paced, answers; /* `paced`: events that are still to come */
    size_t used;
    int64_t due, began, first;
    char data[BUFFER];
};
static struct peer *peers;
static int paced_count;

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void prepare(int fd) {
    int one = 1;
    fcntl(fd, F_SETFL, O_NONBLOCK);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

static int write_all(int fd, const char *data, size_t size) {
    while (size) {
        ssize_t n = write(fd, data, size);
        if (n > 0) {
            data += n;
            size -= (size_t)n;
        } else if (n < 0 && errno == EAGAIN) {
            struct pollfd p = {fd, POLLOUT, 0};
            poll(&p, 1, 1000);
        } else {
            return -1;
        }
    }
    return 0;
}

/* The engine. */

static const char HEAD[] =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";

static size_t event(char *to, int number, int64_t stamp) {
    char text[256];
    int size = snprintf(text, sizeof text,
                        "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"t\":%020lld,"
                        "\"choices\":[{\"index\":0,\"delta\":{\"content\":\"token %04d\"}}]}\n\n",
                        (long long)stamp, number);
    return (size_t)sprintf(to, "%x\r\n%s\r\n", size, text);
}

static size_t last(char *to) {
    const char *text = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":32}}\n\ndata: [DONE]\n\n";
    return (size_t)sprintf(to, "%zx\r\n%s\r\n0\r\n\r\n", strlen(text), text);
}

static void answer(int fd, const char *body) {
    char out[BUFFER];
    size_t n = 0;
    if (strstr(body, "burst")) {
        n = (size_t)sprintf(out, "%s", HEAD);
        for (int i = 0; i < EVENTS; i++) n += event(out + n, i, 0);
        n += last(out + n);
        write_all(fd, out, n);
    } else if (strstr(body, "paced") || strstr(body, "hold")) {
        write_all(fd, HEAD, sizeof HEAD - 1);
        n = event(out, 0, now_ns());
        write_all(fd, out, n);
        if (strstr(body, "paced")) {
            peers[fd].paced = PACED_EVENTS;
            peers[fd].due = now_ns() + PACE_MS * 1000000;
            paced_count++;
        }
    } else {
        write_all(fd, HEAD, sizeof HEAD - 1);
        for (int i = 0; i < EVENTS; i++) {
            n = event(out, i, 0);
            if (write_all(fd, out, n)) return;
        }
        n = last(out);
        write_all(fd, out, n);
    }
}

static void close_peer(int fd) {
    if (peers[fd].paced) paced_count--;
    peers[fd].open = peers[fd].paced = 0;
    close(fd);
}

static void take(int fd) {
    struct peer *p = &peers[fd];
    ssize_t n = read(fd, p->data + p->used, BUFFER - 1 - p->used);
    if (n <= 0) {
        if (n == 0 || errno != EAGAIN) close_peer(fd);
        return;
    }
    p->used += (size_t)n;
    p->data[p->used] = 0;
    char *end = strstr(p->data, "\r\n\r\n");
    char *length = strcasestr(p->data, "\r\ncontent-length:");
    if (!end) return;
    size_t whole = (size_t)(end - p->data) + 4 + (length && length < end ? strtoul(length + 17, NULL, 10) : 0);
    if (p->used < whole) return;
    p->used = 0;
    answer(fd, end + 4);
}

static void pace(int highest) {
    char out[512];
    int64_t now = now_ns();
    for (int fd = 0; fd <= highest; fd++) {
        if (!peers[fd].paced || peers[fd].due > now) continue;
        peers[fd].due += PACE_MS * 1000000;
        size_t n = --peers[fd].paced ? event(out, 1, now_ns()) : last(out);
        if (!peers[fd].paced) paced_count--;
        write_all(fd, out, n);
    }
}

static void engine(int port) {
    int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1, highest = 0, poller = epoll_create1(0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    socklen_t size = sizeof address;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 4096)) fail("listen");
    fcntl(listener, F_SETFL, O_NONBLOCK);
    getsockname(listener, (struct sockaddr *)&address, &size);
    printf("ready %d\n", ntohs(address.sin_port));
    fflush(stdout);
    struct epoll_event e = {.events = EPOLLIN, .data.fd = listener}, found[256];
    epoll_ctl(poller, EPOLL_CTL_ADD, listener, &e);
    for (;;) {
        int n = epoll_wait(poller, found, 256, paced_count ? 1 : -1);
        for (int i = 0; i < n; i++) {
            int fd = found[i].data.fd;
            if (fd != listener) {
                take(fd);
                continue;
            }
            while ((fd = accept(listener, NULL, NULL)) >= 0) {
                prepare(fd);
                if (fd > highest) highest = fd;
                peers[fd].open = 1;
                peers[fd].used = 0;
                e.data.fd = fd;
                epoll_ctl(poller, EPOLL_CTL_ADD, fd, &e);
            }
        }
        if (paced_count) pace(highest);
    }
}

/* The load generator. */

struct sample {
    uint32_t *at;
    size_t count, room;
};

static void note(struct sample *s, int64_t ns) {
    if (s->count == s->room) {
        s->room = s->room ? s->room * 2 : 65536;
        s->at = realloc(s->at, s->room * sizeof *s->at);
    }
    s->at[s->count++] = (uint32_t)(ns / 100);
}

static int by_size(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static double share(struct sample *s, double of) {
    return s->count ? s->at[(size_t)((double)(s->count - 1) * of)] / 10000.0 : 0;
}

static char request[1024];
static size_t request_size;

static void ask(int fd) {
    peers[fd].used = 0;
    peers[fd].first = 0;
    peers[fd].began = now_ns();
    if (write_all(fd, request, request_size)) fail("ask");
}

static int dial(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&address, sizeof address)) fail("connect");
    prepare(fd);
    return fd;
}

static void stamps(const char *data, int64_t now, struct sample *events) {
    for (const char *t = data; (t = strstr(t, "\"t\":")); t += 4) note(events, now - strtoll(t + 4, NULL, 10));
}

static void load(int port, int clients, double seconds, const char *kind, const char *key) {
    struct sample whole = {0}, first = {0}, events = {0};
    int poller = epoll_create1(0), is_paced = !strcmp(kind, "paced"), failed = 0;
    static int fds[MAX_FD];
    char body[192];
    int size = snprintf(body, sizeof body, "{\"model\":\"m\",\"stream\":true,\"kind\":\"%s\","
                        "\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}]}", kind);
    request_size = (size_t)sprintf(request,
                                   "POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
                                   "Accept: */*\r\nUser-Agent: native\r\nAuthorization: Bearer %s\r\n"
                                   "Content-Length: %d\r\n\r\n%s", key, size, body);
    for (int i = 0; i < clients; i++) {
        int fd = dial(port);
        struct epoll_event e = {.events = EPOLLIN, .data.fd = fd};
        epoll_ctl(poller, EPOLL_CTL_ADD, fd, &e);
        fds[i] = fd;
        peers[fd].due = now_ns() + (is_paced ? (int64_t)PACED_EVENTS * PACE_MS * 1000000 / clients * i : 0);
        if (!is_paced) ask(fd);
    }
    int64_t began = now_ns(), end = began + (int64_t)(seconds * 1e9), now;
    struct epoll_event found[256];
    static char data[65536];
    int asked = is_paced ? 0 : clients;
    while ((now = now_ns()) < end) {
        while (asked < clients && peers[fds[asked]].due <= now) ask(fds[asked++]);
        int n = epoll_wait(poller, found, 256, asked < clients ? 1 : 100);
        for (int i = 0; i < n; i++) {
            int fd = found[i].data.fd;
            ssize_t got = read(fd, data, sizeof data - 1);
            now = now_ns();
            if (got <= 0) {
                if (got == 0 || errno != EAGAIN) {
                    failed++;
                    epoll_ctl(poller, EPOLL_CTL_DEL, fd, NULL);
                    close(fd);
                }
                continue;
            }
            data[got] = 0;
            struct peer *p = &peers[fd];
            if (!p->first) {
                p->first = now;
                if (p->answers || !is_paced) note(&first, now - p->began);
                if (memcmp(data, "HTTP/1.1 200", 12)) failed++;
            } else if (is_paced) {
                stamps(data, now, &events);
            }
            /* The last bytes of the answer, across reads. */
            size_t keep = (size_t)got < 8 ? (size_t)got : 8;
            memmove(p->data, p->data + keep, 8 - keep);
            memcpy(p->data + 8 - keep, data + got - keep, keep);
            if (!memcmp(p->data + 1, "\r\n0\r\n\r\n", 7)) {
                note(&whole, now - p->began);
                p->answers++;
                ask(fd);
            }
        }
    }
    double took = (double)(now_ns() - began) / 1e9;
    qsort(whole.at, whole.count, sizeof(uint32_t), by_size);
    qsort(first.at, first.count, sizeof(uint32_t), by_size);
    qsort(events.at, events.count, sizeof(uint32_t), by_size);
    printf("{\"streams\":%zu,\"seconds\":%.4f,\"failed\":%d,\"p50\":%.4f,\"p99\":%.4f,\"first_p50\":%.4f,"
           "\"first_p99\":%.4f,\"event_p50\":%.4f,\"event_p99\":%.4f}\n",
           whole.count, took, failed, share(&whole, 0.5), share(&whole, 0.99), share(&first, 0.5),
           share(&first, 0.99), share(&events, 0.5), share(&events, 0.99));
}

int main(int count, char **words) {
    struct rlimit many = {MAX_FD, MAX_FD};
    setrlimit(RLIMIT_NOFILE, &many);
    signal(SIGPIPE, SIG_IGN);
    peers = calloc(MAX_FD, sizeof *peers);
    if (count == 3 && !strcmp(words[1], "engine")) engine(atoi(words[2]));
    if (count != 7 || strcmp(words[1], "load")) {
        fprintf(stderr, "native engine PORT | native load PORT CLIENTS SECONDS KIND KEY\n");
        return 64;
    }
    load(atoi(words[2]), atoi(words[3]), atof(words[4]), words[5], words[6]);
    return 0;
}
