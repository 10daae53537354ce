// Serve runs the stand-in OpenSandbox server until its input ends, for tests in other languages. It prints the
// server's URL and key in one line.
package main

import (
	"fmt"
	"io"
	"os"

	"github.com/nemo-gym/nemo_gym_sandbox/tests/standins/opensandbox"
)

func main() {
	s, err := opensandbox.Start()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	defer s.Close()
	fmt.Println(s.URL, opensandbox.Key)
	_, _ = io.Copy(io.Discard, os.Stdin)
}
