package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const (
	grpcType = "application/grpc"
	timeout  = 5 * time.Second
	// A gRPC message begins with whether it is compressed, and its length.
	prefixBytes = 5
)

// A client sends requests to one URL.
type client struct {
	scheme, host, url string
	http              http.Client
}

func newClient(text string) (*client, error) {
	parsed, err := url.Parse(text)
	if err != nil {
		return nil, err
	}
	made := &client{scheme: parsed.Scheme, host: parsed.Host, http: http.Client{Timeout: timeout}}
	switch parsed.Scheme {
	case "http", "tcp":
	case "h2c", "grpc":
		protocols := new(http.Protocols)
		protocols.SetUnencryptedHTTP2(true)
		made.http.Transport = &http.Transport{Protocols: protocols}
	default:
		return nil, fmt.Errorf("%s: the scheme is none of http, h2c, grpc, tcp", text)
	}
	parsed.Scheme = "http"
	made.url = parsed.String()
	return made, nil
}

// request returns a status as of HTTP, and what came.
func (client *client) request() (int, string, error) {
	switch client.scheme {
	case "tcp":
		return client.line()
	case "grpc":
		return client.call()
	default:
		response, err := client.http.Get(client.url)
		if err != nil {
			return 0, "", err
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		return response.StatusCode, string(body), err
	}
}

// call is a gRPC call with one empty message.
func (client *client) call() (int, string, error) {
	request, err := http.NewRequest(http.MethodPost, client.url, bytes.NewReader(make([]byte, prefixBytes)))
	if err != nil {
		return 0, "", err
	}
	request.Header.Set("Content-Type", grpcType)
	request.Header.Set("TE", "trailers")
	response, err := client.http.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, "", err
	}
	status, message := response.Trailer.Get("Grpc-Status"), response.Trailer.Get("Grpc-Message")
	if status == "" {
		// An answer without a message has its status in front.
		status, message = response.Header.Get("Grpc-Status"), response.Header.Get("Grpc-Message")
	}
	if response.StatusCode != http.StatusOK || status != "0" || len(body) < prefixBytes {
		return 0, "", fmt.Errorf("status %d, grpc-status %q: %s", response.StatusCode, status, message)
	}
	return http.StatusOK, string(body[prefixBytes:]), nil
}

// answerCall answers a gRPC call with one message, the text.
func answerCall(response http.ResponseWriter, request *http.Request, text string) {
	if _, err := io.Copy(io.Discard, request.Body); err != nil {
		return
	}
	response.Header().Set("Content-Type", grpcType)
	response.Header().Set("Trailer", "Grpc-Status")
	prefix := make([]byte, prefixBytes)
	binary.BigEndian.PutUint32(prefix[1:], uint32(len(text)))
	response.Write(prefix)
	io.WriteString(response, text)
	response.Header().Set("Grpc-Status", "0")
}

// line sends a line on a connection of its own, and expects one.
func (client *client) line() (int, string, error) {
	connection, err := net.DialTimeout("tcp", client.host, timeout)
	if err != nil {
		return 0, "", err
	}
	defer connection.Close()
	connection.SetDeadline(time.Now().Add(timeout))
	if _, err := io.WriteString(connection, "\n"); err != nil {
		return 0, "", err
	}
	answer, err := bufio.NewReader(connection).ReadString('\n')
	if errors.Is(err, io.EOF) {
		err = errors.New("the connection ended without an answer")
	}
	return http.StatusOK, answer, err
}

func serveLines(host string) {
	listener, err := net.Listen("tcp", ":9000")
	if err != nil {
		fail(err)
	}
	for {
		connection, err := listener.Accept()
		if err != nil {
			fail(err)
		}
		go answerLines(connection, host)
	}
}

func answerLines(connection net.Conn, host string) {
	defer connection.Close()
	peer, _, _ := net.SplitHostPort(connection.RemoteAddr().String())
	lines := bufio.NewScanner(connection)
	for lines.Scan() {
		answer := lines.Text()
		if strings.TrimSpace(answer) == "" {
			answer = fmt.Sprintf("host=%s peer=%s", host, peer)
		}
		fmt.Fprintln(connection, answer)
	}
}
