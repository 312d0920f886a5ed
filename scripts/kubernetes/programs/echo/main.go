// A program for Pods of tests.
//
//	echo serve                          answers on :8080 (HTTP/1 and HTTP/2), :8081 and :8082 (gRPC, too) with what it got: its host's name,
//	                                    the peer, the certificate's identity; on :9000 (TCP) with the line that it got, or if it is empty, its host's name
//	echo get URL                        prints status and body; exit code 1 without an answer
//	echo load URL                       requests one after another until standard input ends, and prints how many there were and what failed
//
// The scheme of a URL is http, h2c (HTTP/2 without TLS), grpc (a call without a method's meaning) or tcp.
package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	switch {
	case len(os.Args) == 2 && os.Args[1] == "serve":
		serve()
	case len(os.Args) == 3 && os.Args[1] == "get":
		get(os.Args[2])
	case len(os.Args) == 3 && os.Args[1] == "load":
		load(os.Args[2])
	default:
		fail("usage: echo serve | get URL | load URL")
	}
}

func serve() {
	host, _ := os.Hostname()
	go serveLines(host)
	answer := func(response http.ResponseWriter, request *http.Request) {
		peer, _, _ := net.SplitHostPort(request.RemoteAddr)
		identity := request.Header.Get("X-Forwarded-Client-Cert")
		text := fmt.Sprintf("host=%s peer=%s path=%s xfcc=%s\n", host, peer, request.URL.Path, identity)
		if request.Header.Get("Content-Type") == grpcType {
			answerCall(response, request, text)
			return
		}
		io.WriteString(response, text)
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	server := http.Server{Handler: http.HandlerFunc(answer), ReadHeaderTimeout: 10 * time.Second, Protocols: protocols}
	stop, release := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer release()
	down := make(chan struct{})
	go func() {
		<-stop.Done()
		server.Shutdown(context.Background())
		close(down)
	}()
	// A port each, as a proxy speaks one protocol with a port.
	ports := []string{":8080", ":8081", ":8082"}
	ended := make(chan error, len(ports))
	for _, port := range ports {
		listener, err := net.Listen("tcp", port)
		if err != nil {
			fail(err)
		}
		go func() { ended <- server.Serve(listener) }()
	}
	if err := <-ended; err != http.ErrServerClosed {
		fail(err)
	}
	<-down
}

func get(url string) {
	client, err := newClient(url)
	if err != nil {
		fail(err)
	}
	status, body, err := client.request()
	if err != nil {
		fail(err)
	}
	fmt.Printf("%d %s", status, body)
}

func load(url string) {
	client, err := newClient(url)
	if err != nil {
		fail(err)
	}
	ended := make(chan struct{})
	go func() {
		io.Copy(io.Discard, os.Stdin)
		close(ended)
	}()
	begin := time.Now()
	requests, failed := 0, map[string]int{}
	for {
		select {
		case <-ended:
			fmt.Printf("requests=%d failed=%v\n", requests, failed)
			return
		default:
		}
		requests++
		status, body, err := client.request()
		at := time.Since(begin).Seconds()
		switch {
		case err != nil:
			failed[fmt.Sprintf("%.1f s: %v", at, err)]++
		case status != http.StatusOK:
			failed[fmt.Sprintf("%.1f s: %d %s", at, status, body)]++
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func fail(problem any) {
	fmt.Fprintln(os.Stderr, problem)
	os.Exit(1)
}
