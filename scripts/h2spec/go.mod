// Pins what h2spec is built of: its last release that the module proxy serves has no go.mod of its own.
module evenkeel.dev/h2spec

go 1.19

require github.com/summerwind/h2spec v2.2.1+incompatible

require (
	github.com/fatih/color v1.13.0
	github.com/spf13/cobra v1.6.1
	golang.org/x/net v0.7.0
)
