// An authorization server on Envoy's published API, for tests and as an example: gRPC
// (envoy.service.auth.v3.Authorization/Check) and HTTP.
//
//	authz-server -grpc 127.0.0.1:9000 -http 127.0.0.1:8000
//
// It permits a request with the header "x-ext-authz: allow" and refuses any other, as the server of Istio's samples does.
// The header "authz-answer" has it answer something else: the JSON of a CheckResponse, or for HTTP of an httpAnswer.
// "authz-mode" has it misbehave. Both may also come as metadata of the call. With -log it prints a line of JSON for each
// question. With -limit it refuses to read more than that.
package main

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	auth "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	rpc "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

const (
	checkHeader  = "x-ext-authz"
	resultHeader = "x-ext-authz-check-result"
	method       = "/envoy.service.auth.v3.Authorization/Check"
	bigBytes     = 2 << 20
	denial       = "denied by ext_authz for not found header `x-ext-authz: allow` in the request"
)

var (
	printing sync.Mutex
	verbose  bool
	permits  bool
)

func main() {
	grpcAddress := flag.String("grpc", ":9000", "address of the gRPC service")
	httpAddress := flag.String("http", ":8000", "address of the HTTP service")
	flag.BoolVar(&verbose, "log", false, "print each question")
	flag.BoolVar(&permits, "permit", false, "permit every request")
	limit := flag.Int("limit", 4<<20, "most bytes of a gRPC message, and of the header of a request over HTTP")
	flag.Parse()
	grpcListener, err := net.Listen("tcp", *grpcAddress)
	if err != nil {
		log.Fatal(err)
	}
	httpListener, err := net.Listen("tcp", *httpAddress)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("listening gRPC %s HTTP %s\n", grpcListener.Addr(), httpListener.Addr())
	go func() {
		// The messages are read and written here, so that an answer may be something else, too.
		server := grpc.NewServer(grpc.ForceServerCodec(rawCodec{}), grpc.UnknownServiceHandler(check),
			grpc.MaxRecvMsgSize(*limit))
		log.Fatal(server.Serve(grpcListener))
	}()
	server := &http.Server{Handler: http.HandlerFunc(checkHTTP), MaxHeaderBytes: *limit}
	log.Fatal(server.Serve(httpListener))
}

// Passes bytes as they are.
type rawCodec struct{}

func (rawCodec) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }
func (rawCodec) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = append([]byte(nil), data...)
	return nil
}
func (rawCodec) Name() string { return "proto" }

func check(_ any, stream grpc.ServerStream) error {
	if name, _ := grpc.MethodFromServerStream(stream); name != method {
		return status.Errorf(codes.Unimplemented, "unknown method %s", name)
	}
	var frame []byte
	if err := stream.RecvMsg(&frame); err != nil {
		return err
	}
	request := &auth.CheckRequest{}
	if err := proto.Unmarshal(frame, request); err != nil {
		return status.Errorf(codes.InvalidArgument, "%v", err)
	}
	known, _ := metadata.FromIncomingContext(stream.Context())
	wanted := func(name string) string {
		if values := known.Get(name); len(values) > 0 {
			return values[0]
		}
		return header(request.GetAttributes().GetRequest().GetHttp(), name)
	}
	printQuestion("grpc", protoLine(request), callMetadata(known))
	answer := answerFor(request)
	if text := wanted("authz-answer"); text != "" {
		answer = &auth.CheckResponse{}
		if err := protojson.Unmarshal([]byte(text), answer); err != nil {
			return status.Errorf(codes.InvalidArgument, "authz-answer: %v", err)
		}
	}
	bytes, err := proto.Marshal(answer)
	if err != nil {
		return err
	}
	mode := wanted("authz-mode")
	switch {
	case mode == "":
	case mode == "hang":
		return hang(stream.Context())
	case mode == "garbage":
		bytes = []byte{0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f, 1, 2, 3}
	case mode == "big":
		bytes, err = proto.Marshal(&auth.CheckResponse{HttpResponse: &auth.CheckResponse_DeniedResponse{
			DeniedResponse: &auth.DeniedHttpResponse{Body: strings.Repeat("a", bigBytes)},
		}, Status: &rpc.Status{Code: int32(codes.PermissionDenied)}})
		if err != nil {
			return err
		}
	case mode == "twice":
		if err := stream.SendMsg(&bytes); err != nil {
			return err
		}
	case mode == "none":
		return nil
	case strings.HasPrefix(mode, "raw-"):
		// A message that this version of the API does not have yet.
		if bytes, err = hex.DecodeString(strings.TrimPrefix(mode, "raw-")); err != nil {
			return err
		}
	case strings.HasPrefix(mode, "status-"):
		code, err := strconv.Atoi(strings.TrimPrefix(mode, "status-"))
		if err != nil {
			return err
		}
		return status.Error(codes.Code(code), "as asked for")
	case strings.HasPrefix(mode, "sleep-"):
		duration, err := time.ParseDuration(strings.TrimPrefix(mode, "sleep-"))
		if err != nil {
			return err
		}
		time.Sleep(duration)
	default:
		return status.Errorf(codes.InvalidArgument, "authz-mode %q", mode)
	}
	return stream.SendMsg(&bytes)
}

// What the server of Istio's samples says.
func answerFor(request *auth.CheckRequest) *auth.CheckResponse {
	option := func(name, value string) *core.HeaderValueOption {
		return &core.HeaderValueOption{Header: &core.HeaderValue{Key: name, Value: value}}
	}
	if permits || header(request.GetAttributes().GetRequest().GetHttp(), checkHeader) == "allow" {
		return &auth.CheckResponse{
			Status: &rpc.Status{Code: int32(codes.OK)},
			HttpResponse: &auth.CheckResponse_OkResponse{OkResponse: &auth.OkHttpResponse{
				Headers: []*core.HeaderValueOption{option(resultHeader, "allowed")},
			}},
		}
	}
	return &auth.CheckResponse{
		Status: &rpc.Status{Code: int32(codes.PermissionDenied)},
		HttpResponse: &auth.CheckResponse_DeniedResponse{DeniedResponse: &auth.DeniedHttpResponse{
			Status:  &typev3.HttpStatus{Code: typev3.StatusCode_Forbidden},
			Body:    denial,
			Headers: []*core.HeaderValueOption{option(resultHeader, "denied")},
		}},
	}
}

func header(request *auth.AttributeContext_HttpRequest, name string) string {
	return request.GetHeaders()[name]
}

// An answer over HTTP.
type httpAnswer struct {
	Status  int
	Headers [][2]string
	Body    string
}

func checkHTTP(writer http.ResponseWriter, request *http.Request) {
	body, err := io.ReadAll(request.Body)
	if err != nil {
		return
	}
	printQuestion("http", httpLine(request, body), nil)
	answer := httpAnswer{Status: http.StatusForbidden, Headers: [][2]string{{resultHeader, "denied"}}, Body: denial}
	if permits || request.Header.Get(checkHeader) == "allow" {
		answer = httpAnswer{Status: http.StatusOK, Headers: [][2]string{{resultHeader, "allowed"}}}
	}
	if text := request.Header.Get("authz-answer"); text != "" {
		answer = httpAnswer{}
		if err := json.Unmarshal([]byte(text), &answer); err != nil {
			http.Error(writer, err.Error(), http.StatusInternalServerError)
			return
		}
	}
	switch mode := request.Header.Get("authz-mode"); {
	case mode == "":
	case mode == "hang":
		_ = hang(request.Context())
		return
	case mode == "garbage":
		raw(writer, "this is not HTTP\r\n\r\n")
		return
	case mode == "reset":
		raw(writer, "")
		return
	case mode == "truncated":
		raw(writer, "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc")
		return
	case mode == "huge-header":
		raw(writer, "HTTP/1.1 200 OK\r\nx-huge: "+strings.Repeat("a", 200_000)+"\r\ncontent-length: 0\r\n\r\n")
		return
	case mode == "big":
		answer = httpAnswer{Status: http.StatusForbidden, Body: strings.Repeat("a", bigBytes)}
	case strings.HasPrefix(mode, "sleep-"):
		duration, err := time.ParseDuration(strings.TrimPrefix(mode, "sleep-"))
		if err != nil {
			http.Error(writer, err.Error(), http.StatusInternalServerError)
			return
		}
		time.Sleep(duration)
	default:
		http.Error(writer, "authz-mode "+mode, http.StatusInternalServerError)
		return
	}
	for _, field := range answer.Headers {
		writer.Header().Add(field[0], field[1])
	}
	writer.WriteHeader(answer.Status)
	_, _ = io.WriteString(writer, answer.Body)
}

// Waits until the caller has gone.
func hang(ctx context.Context) error {
	<-ctx.Done()
	printQuestion("cancelled", "null", nil)
	return ctx.Err()
}

// Sends these bytes instead of a response, and closes.
func raw(writer http.ResponseWriter, text string) {
	connection, _, err := writer.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	_, _ = io.WriteString(connection, text)
	_ = connection.Close()
}

func printQuestion(kind, line string, more []string) {
	if !verbose {
		return
	}
	printing.Lock()
	defer printing.Unlock()
	fmt.Fprintf(os.Stdout, "%s %s %s\n", kind, line, strings.Join(more, " "))
}

// The message in one line, with its fields in a fixed order.
func protoLine(message proto.Message) string {
	text, err := protojson.Marshal(message)
	if err != nil {
		return err.Error()
	}
	var compact any
	if err := json.Unmarshal(text, &compact); err != nil {
		return err.Error()
	}
	line := &bytes.Buffer{}
	encoder := json.NewEncoder(line)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(compact); err != nil {
		return err.Error()
	}
	return strings.TrimSpace(line.String())
}

func callMetadata(known metadata.MD) []string {
	var all []string
	for name, values := range known {
		all = append(all, fmt.Sprintf("%s=%q", name, values))
	}
	sort.Strings(all)
	return all
}

func httpLine(request *http.Request, body []byte) string {
	headers := map[string][]string{}
	for name, values := range request.Header {
		headers[strings.ToLower(name)] = values
	}
	line := &bytes.Buffer{}
	encoder := json.NewEncoder(line)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(map[string]any{
		"method": request.Method, "target": request.RequestURI, "host": request.Host, "protocol": request.Proto,
		"length": request.ContentLength, "headers": headers, "body": string(body),
	})
	return strings.TrimSpace(line.String())
}
