//go:build grpcdial

// For grpc-go before 1.63, which has no NewClient.

package main

import "google.golang.org/grpc"

func connect(address string) (*grpc.ClientConn, error) {
	return grpc.Dial(address, grpc.WithInsecure())
}
