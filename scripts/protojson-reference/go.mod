module evenkeel.test/protojson-reference

go 1.19

require google.golang.org/protobuf v1.31.0
