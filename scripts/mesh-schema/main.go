// Writes the definitions of Istio's MeshConfig, a FileDescriptorSet, to the file that its argument names. Tests compare our reader with
// Go's by them: go run . ../../crates/api/tests/it/mesh_config.bin
package main

import (
	"os"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	mesh "istio.io/api/mesh/v1alpha1"
)

func main() {
	var set descriptorpb.FileDescriptorSet
	seen := map[string]bool{}
	var add func(f protoreflect.FileDescriptor)
	add = func(f protoreflect.FileDescriptor) {
		if seen[f.Path()] {
			return
		}
		seen[f.Path()] = true
		for i := 0; i < f.Imports().Len(); i++ {
			add(f.Imports().Get(i).FileDescriptor)
		}
		set.File = append(set.File, protodesc.ToFileDescriptorProto(f))
	}
	add(mesh.File_mesh_v1alpha1_config_proto)
	encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(&set)
	if err == nil {
		err = os.WriteFile(os.Args[1], encoded, 0o644)
	}
	if err != nil {
		panic(err)
	}
}
