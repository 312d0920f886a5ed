// Tells how Go's protojson, the reader of istiod, reads JSON texts of messages, for tests that compare. The argument is a file with a
// FileDescriptorSet. For each line on its input, {"type": …, "json": …}, it prints {"error": …} or {"encoded": base64}.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
)

type question struct {
	Type string `json:"type"`
	JSON string `json:"json"`
}

type answer struct {
	Error   string `json:"error,omitempty"`
	Encoded []byte `json:"encoded"`
}

func load(path string) (*dynamicpb.Types, error) {
	bytes, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var set descriptorpb.FileDescriptorSet
	if err := proto.Unmarshal(bytes, &set); err != nil {
		return nil, err
	}
	files, err := protodesc.FileOptions{AllowUnresolvable: true}.NewFiles(&set)
	if err != nil {
		return nil, err
	}
	return dynamicpb.NewTypes(files), nil
}

func read(types *dynamicpb.Types, q question) answer {
	kind, err := types.FindMessageByName(protoreflect.FullName(q.Type))
	if err != nil {
		return answer{Error: "no such type: " + err.Error()}
	}
	message := kind.New().Interface()
	if err := (protojson.UnmarshalOptions{Resolver: types}).Unmarshal([]byte(q.JSON), message); err != nil {
		return answer{Error: err.Error()}
	}
	encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(message)
	if err != nil {
		return answer{Error: err.Error()}
	}
	return answer{Encoded: encoded}
}

func main() {
	types, err := load(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<24)
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	for lines.Scan() {
		var q question
		if err := json.Unmarshal(lines.Bytes(), &q); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		text, _ := json.Marshal(read(types, q))
		out.Write(append(text, '\n'))
	}
}
