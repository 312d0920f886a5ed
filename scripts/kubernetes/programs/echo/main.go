// A program for Pods of tests.
//
//	echo serve                          answers on :8080 with what it got: its host's name, the peer, the certificate's identity
//	echo get URL                        prints status and body; exit code 1 without an answer
//	echo load URL SECONDS               requests one after another, and prints how many there were and what failed
package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"
)

func main() {
	switch {
	case len(os.Args) == 2 && os.Args[1] == "serve":
		serve()
	case len(os.Args) == 3 && os.Args[1] == "get":
		get(os.Args[2])
	case len(os.Args) == 4 && os.Args[1] == "load":
		load(os.Args[2], os.Args[3])
	default:
		fail("usage: echo serve | get URL | load URL SECONDS")
	}
}

func serve() {
	host, _ := os.Hostname()
	answer := func(response http.ResponseWriter, request *http.Request) {
		peer, _, _ := net.SplitHostPort(request.RemoteAddr)
		identity := request.Header.Get("X-Forwarded-Client-Cert")
		fmt.Fprintf(response, "host=%s peer=%s path=%s xfcc=%s\n", host, peer, request.URL.Path, identity)
	}
	server := http.Server{Addr: ":8080", Handler: http.HandlerFunc(answer), ReadHeaderTimeout: 10 * time.Second}
	stop, release := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer release()
	go func() {
		<-stop.Done()
		server.Shutdown(context.Background())
	}()
	if err := server.ListenAndServe(); err != http.ErrServerClosed {
		fail(err)
	}
}

func get(url string) {
	client := http.Client{Timeout: 5 * time.Second}
	response, err := client.Get(url)
	if err != nil {
		fail(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		fail(err)
	}
	fmt.Printf("%d %s", response.StatusCode, body)
}

func load(url, seconds string) {
	duration, err := strconv.Atoi(seconds)
	if err != nil {
		fail(err)
	}
	client := http.Client{Timeout: 5 * time.Second}
	end := time.Now().Add(time.Duration(duration) * time.Second)
	requests, failed := 0, map[string]int{}
	for time.Now().Before(end) {
		requests++
		if problem := request(&client, url); problem != "" {
			failed[problem]++
		}
		time.Sleep(5 * time.Millisecond)
	}
	fmt.Printf("requests=%d failed=%v\n", requests, failed)
}

func request(client *http.Client, url string) string {
	response, err := client.Get(url)
	if err != nil {
		return err.Error()
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err.Error()
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Sprintf("%d %s", response.StatusCode, body)
	}
	return ""
}

func fail(problem any) {
	fmt.Fprintln(os.Stderr, problem)
	os.Exit(1)
}
