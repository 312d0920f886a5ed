// grpc-xds-client serves gRPC's health service on two ports, dials xds:///TARGET as a proxyless gRPC client does, and
// prints one line for each call: the port that answered, or the error. With GRPC_XDS_BOOTSTRAP_CONFIG it is told which
// control plane to ask. It says on its first line which ports it serves.
package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"
	_ "google.golang.org/grpc/xds"
)

func serve() int {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	server := grpc.NewServer()
	healthpb.RegisterHealthServer(server, health.NewServer())
	go server.Serve(listener)
	return listener.Addr().(*net.TCPAddr).Port
}

func main() {
	fmt.Println("serving", serve(), serve())
	connection, err := grpc.Dial("xds:///"+os.Args[1], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	client := healthpb.NewHealthClient(connection)
	for {
		var from peer.Peer
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		_, err := client.Check(ctx, &healthpb.HealthCheckRequest{}, grpc.Peer(&from))
		cancel()
		if err != nil {
			fmt.Println("error:", err)
		} else {
			fmt.Println("answered", from.Addr.(*net.TCPAddr).Port)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
