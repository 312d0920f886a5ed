// Tells how Go's package regexp reads expressions of RE2, for tests that compare. For each line on its input, {"pattern": …, "values":
// [base64, …]}, it prints {"error": …} or {"matches": [true, …]}: whether each value as a whole matches.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"regexp/syntax"
)

type question struct {
	Pattern string   `json:"pattern"`
	Values  [][]byte `json:"values"`
}

type answer struct {
	Error   string `json:"error,omitempty"`
	Matches []bool `json:"matches"`
}

func ask(q question) answer {
	parsed, err := syntax.Parse(q.Pattern, syntax.Perl)
	if err != nil {
		return answer{Error: err.Error()}
	}
	// Printed again, since in `a\Qb` what follows would be part of the quotation.
	whole, err := regexp.Compile(`\A(?:` + parsed.String() + `)\z`)
	if err != nil {
		return answer{Error: err.Error()}
	}
	var result answer
	for _, value := range q.Values {
		result.Matches = append(result.Matches, whole.Match(value))
	}
	return result
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	for lines.Scan() {
		var q question
		if err := json.Unmarshal(lines.Bytes(), &q); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		text, _ := json.Marshal(ask(q))
		out.Write(append(text, '\n'))
	}
}
