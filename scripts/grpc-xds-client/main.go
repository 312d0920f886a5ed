// grpc-xds-client is a program of Go's gRPC that asks a control plane itself: as a client of xds:///TARGET, and if told so as a
// server that is configured by xDS, too. With GRPC_XDS_BOOTSTRAP_CONFIG it is told which control plane to ask.
//
//	grpc-xds-client [-credentials] [-metadata KEY=VALUE] [-xds-server ADDRESS] TARGET [TARGET...]
//
// It serves gRPC's health service on two ports, and behind xDS on ADDRESS; its first line says which: "serving A B C". It calls
// the first target for as long as it runs and prints a line for each call: "answered PORT." (with "over tls" before the stop)
// or the error. With -metadata every second call carries it, and its lines say "with metadata" first. Other targets it only
// resolves.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	xdscredentials "google.golang.org/grpc/credentials/xds"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/xds"
)

// How long one call may take.
const patience = 2 * time.Second

type server interface {
	grpc.ServiceRegistrar
	Serve(net.Listener) error
}

func serve(server server, address string) int {
	listener, err := net.Listen("tcp", address)
	stop(err)
	healthpb.RegisterHealthServer(server, health.NewServer())
	go func() { stop(server.Serve(listener)) }()
	return listener.Addr().(*net.TCPAddr).Port
}

// serveByXDS serves as the control plane says.
func serveByXDS(address string) int {
	fallback := insecure.NewCredentials()
	creds, err := xdscredentials.NewServerCredentials(xdscredentials.ServerOptions{FallbackCreds: fallback})
	stop(err)
	told := xds.ServingModeCallback(func(address net.Addr, mode xds.ServingModeChangeArgs) {
		fmt.Println("server", address, mode.Mode, mode.Err)
	})
	server, err := xds.NewGRPCServer(grpc.Creds(creds), told)
	stop(err)
	return serve(server, address)
}

func stop(err error) {
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
}

func dial(target string, creds credentials.TransportCredentials) *grpc.ClientConn {
	connection, err := grpc.Dial("xds:///"+target, grpc.WithTransportCredentials(creds))
	stop(err)
	return connection
}

func call(client healthpb.HealthClient, pairs ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var from peer.Peer
	_, err := client.Check(metadata.AppendToOutgoingContext(ctx, pairs...), &healthpb.HealthCheckRequest{}, grpc.Peer(&from))
	if err != nil {
		return "", err
	}
	port, isTCP := from.Addr.(*net.TCPAddr)
	if !isTCP {
		return "", errors.New("who answered is unknown")
	}
	over := ""
	if from.AuthInfo != nil && from.AuthInfo.AuthType() == "tls" {
		over = " over tls"
	}
	return fmt.Sprintf("answered %d%s.", port.Port, over), nil
}

func say(prefix string, answer string, err error) {
	if err != nil {
		answer = "error: " + err.Error()
	}
	fmt.Println(prefix + answer)
}

func main() {
	withCredentials := flag.Bool("credentials", false, "use TLS where the control plane says so")
	pair := flag.String("metadata", "", "KEY=VALUE that every second call carries")
	xdsServer := flag.String("xds-server", "", "address to serve on as the control plane says")
	flag.Parse()
	if flag.NArg() == 0 {
		stop(errors.New("no target"))
	}
	ports := []any{"serving", serve(grpc.NewServer(), "127.0.0.1:0"), serve(grpc.NewServer(), "127.0.0.1:0")}
	if *xdsServer != "" {
		ports = append(ports, serveByXDS(*xdsServer))
	}
	fmt.Println(ports...)

	creds := insecure.NewCredentials()
	if *withCredentials {
		var err error
		creds, err = xdscredentials.NewClientCredentials(xdscredentials.ClientOptions{FallbackCreds: creds})
		stop(err)
	}
	for _, target := range flag.Args()[1:] {
		dial(target, creds)
	}
	client := healthpb.NewHealthClient(dial(flag.Arg(0), creds))
	for {
		answer, err := call(client)
		say("", answer, err)
		if key, value, isPair := strings.Cut(*pair, "="); isPair {
			answer, err := call(client, key, value)
			say("with metadata ", answer, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
