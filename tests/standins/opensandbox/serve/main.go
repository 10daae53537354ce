// Serve runs the stand-in OpenSandbox server until its input ends, for tests in other languages. It prints the
// server's URL and key in one line. A line of input is a failure to come, as the JSON of opensandbox.Fault; it is
// answered with another line.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
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
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var f opensandbox.Fault
		if err := json.Unmarshal(lines.Bytes(), &f); err != nil {
			fmt.Println("not understood:", err)
			continue
		}
		s.Fail(f)
		fmt.Println("ok")
	}
}
