// Command hello runs one command in a sandbox, from Go: go run ./examples/hello [PROVIDER]
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
	"github.com/nemo-gym/nemo_gym_sandbox/providers/all"
)

func run(ctx context.Context, name string) error {
	provider, err := all.Registry().New(name, nil)
	if err != nil {
		return err
	}
	defer provider.Close(ctx)
	sandbox := core.NewSandbox(provider, core.Spec{Env: map[string]string{"WHO": "world"}})
	defer sandbox.Stop(ctx)
	if err := sandbox.Start(ctx); err != nil {
		return err
	}
	output := core.NewCollector(0)
	defer output.Close()
	result, err := sandbox.Exec(ctx, core.ExecRequest{Command: `echo "hello $WHO"`}, output)
	if err != nil {
		return err
	}
	fmt.Printf("%d %s", result.ExitCode, output.Output(core.Stdout).String())
	return nil
}

func main() {
	name := "local"
	if len(os.Args) > 1 {
		name = os.Args[1]
	}
	if err := run(context.Background(), name); err != nil {
		log.Fatal(err)
	}
}
