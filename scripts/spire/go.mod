// Pins what SPIRE is built of, for the test of `make spire`.
module evenkeel.dev/spire

go 1.24.6

require github.com/spiffe/spire v1.13.0
