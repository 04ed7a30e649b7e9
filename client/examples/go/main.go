// Streams a generation from Treadle. Usage:
//
//	go run . [--max-new-tokens N] [--temperature T] [--deadline DURATION] [--cancel-after CHUNKS] PROMPT
//
// The server is that of TREADLE_ADDRESS, or 127.0.0.1:50051. Ctrl-C cancels.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "treadle.example/stubs/treadle/v1"
)

var (
	maxNewTokens = flag.Uint("max-new-tokens", 32, "most tokens to generate")
	temperature  = flag.Float64("temperature", 0, "0 is greedy; unset: the server's default")
	deadline     = flag.Duration("deadline", time.Minute, "the call's deadline from now")
	cancelAfter  = flag.Int("cancel-after", 0, "cancel after this many chunks; 0: never")
)

func main() {
	flag.Parse()
	err := generate(strings.Join(flag.Args(), " "))
	switch status.Code(err) {
	case codes.OK:
	case codes.Canceled:
		fmt.Println("\n[cancelled]")
	default:
		report(status.Convert(err))
		os.Exit(1)
	}
}

// generate returns the status that the call ended with, as an error.
func generate(prompt string) error {
	address := os.Getenv("TREADLE_ADDRESS")
	if address == "" {
		address = "127.0.0.1:50051"
	}
	connection, err := connect(address)
	if err != nil {
		return err
	}
	defer connection.Close()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	// The server is told of the deadline, and of the cancellation: it stops the work at once.
	ctx, cancel := context.WithTimeout(ctx, *deadline)
	defer cancel()

	stream, err := pb.NewGenerationServiceClient(connection).Generate(ctx, request(prompt))
	if err != nil {
		return err
	}
	var result *pb.Result
	for chunks := 0; ; {
		response, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			fmt.Printf("\n[%s, %d tokens]\n", result.GetFinishReason(), result.GetUsage().GetCompletionTokens())
			return nil
		}
		if err != nil {
			return err
		}
		switch event := response.GetEvent().(type) {
		case *pb.GenerateResponse_Tokens:
			fmt.Print(event.Tokens.GetText())
			if chunks++; chunks == *cancelAfter {
				cancel()
			}
		case *pb.GenerateResponse_Result:
			result = event.Result
		}
	}
}

func request(prompt string) *pb.GenerateRequest {
	request := &pb.GenerateRequest{
		Input:    &pb.GenerateRequest_Prompt{Prompt: prompt},
		Stopping: &pb.StoppingCriteria{MaxNewTokens: proto.Uint32(uint32(*maxNewTokens))},
	}
	// A field that is nil takes the server's default; 0 would not.
	flag.Visit(func(given *flag.Flag) {
		if given.Name == "temperature" {
			request.Sampling = &pb.SamplingParams{Temperature: proto.Float32(float32(*temperature))}
		}
	})
	return request
}

// report writes the status and its ErrorInfo: why the call was refused, for programs to read.
func report(status *status.Status) {
	fmt.Fprintf(os.Stderr, "\n%s: %s\n", status.Code(), status.Message())
	for _, detail := range status.Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			fmt.Fprintf(os.Stderr, "reason %s %v\n", info.GetReason(), info.GetMetadata())
		}
	}
}
