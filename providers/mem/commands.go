package mem

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// process is one command that runs.
type process struct {
	in    *instance
	ctx   context.Context
	req   *core.ExecRequest
	write func(p []byte) error
	errs  func(p []byte) error
}

type command func(p *process, args []string) (int, error)

var commands = map[string]command{
	"echo": func(p *process, args []string) (int, error) {
		return 0, p.write([]byte(strings.Join(args, " ") + "\n"))
	},
	"pwd": func(p *process, _ []string) (int, error) {
		return 0, p.write([]byte(p.in.abs(p.req.Cwd, "") + "\n"))
	},
	"whoami": func(p *process, _ []string) (int, error) {
		user := p.req.User
		if user == "" || user == "0" {
			user = "root"
		}
		return 0, p.write([]byte(user + "\n"))
	},
	"true":  func(*process, []string) (int, error) { return 0, nil },
	"false": func(*process, []string) (int, error) { return 1, nil },
	"sleep": func(p *process, args []string) (int, error) {
		s, err := number(args)
		if err != nil {
			return 2, p.errs([]byte("sleep: " + err.Error() + "\n"))
		}
		return 0, pause(p.ctx, s)
	},
	"spin": spin,
	"yes":  yes,
	"cat":  cat,
	"wc": func(p *process, _ []string) (int, error) {
		n, err := copyTo(p, io.Discard)
		if err != nil {
			return 1, err
		}
		return 0, p.write([]byte(strconv.FormatInt(n, 10) + "\n"))
	},
	"env": env,
}

func number(args []string) (float64, error) {
	if len(args) == 0 {
		return 0, errors.New("a number is missing")
	}
	return strconv.ParseFloat(args[0], 64)
}

// run interprets a command line. An error means that it did not get to its end.
func (in *instance) run(ctx context.Context, req *core.ExecRequest, sink core.Sink) (int, error) {
	lines := [][]string{req.Argv}
	if len(req.Argv) == 0 {
		var err error
		if lines, err = parse(req.Command); err != nil {
			_ = sink.Write(core.Stderr, []byte("mem: "+err.Error()+"\n")) // nobody reads it then
			return 2, nil
		}
	}
	code := 0
	for _, words := range lines {
		if words[0] == "&&" {
			if code != 0 {
				return code, nil
			}
			words = words[1:]
		}
		if words[0] == "exit" {
			n, err := number(words[1:])
			if err != nil {
				return code, nil
			}
			return int(n) & 0xff, nil
		}
		p := &process{in: in, ctx: ctx, req: req}
		// A closed pipe ends a command, not what follows it.
		var closed atomic.Bool
		writer := func(s core.Stream) func([]byte) error {
			return func(b []byte) error {
				err := sink.Write(s, b)
				if err != nil {
					closed.Store(true)
				}
				return err
			}
		}
		p.write, p.errs = writer(core.Stdout), writer(core.Stderr)
		if words[len(words)-1] == ">&2" {
			words, p.write = words[:len(words)-1], p.errs
		}
		c, ok := commands[words[0]]
		var err error
		if !ok {
			code, err = 127, p.errs([]byte(words[0]+": not found\n"))
		} else {
			code, err = c(p, words[1:])
		}
		if ctx.Err() != nil {
			return code, context.Cause(ctx)
		}
		if err != nil && !closed.Load() {
			return code, err
		}
		if closed.Load() {
			code = 141 // as death by SIGPIPE
		}
	}
	return code, nil
}

// parse splits a command line into commands of words. "&&" leads the words of a command that depends on the one before.
func parse(line string) ([][]string, error) {
	var all [][]string
	var cur []string
	var word strings.Builder
	started := false
	endWord := func() {
		if started {
			cur = append(cur, word.String())
			word.Reset()
			started = false
		}
	}
	endCommand := func(next ...string) error {
		endWord()
		if len(cur) == 0 || (len(cur) == 1 && cur[0] == "&&") {
			return errors.New("a command is missing")
		}
		all, cur = append(all, cur), next
		return nil
	}
	for i := 0; i < len(line); i++ {
		switch c := line[i]; {
		case c == '\'' || c == '"':
			end := strings.IndexByte(line[i+1:], c)
			if end < 0 {
				return nil, errors.New("a quote is not closed")
			}
			word.WriteString(line[i+1 : i+1+end])
			started = true
			i += end + 1
		case c == ' ' || c == '\n' || c == '\t':
			endWord()
		case c == ';':
			if err := endCommand(); err != nil {
				return nil, err
			}
		case strings.HasPrefix(line[i:], "&&"):
			if err := endCommand("&&"); err != nil {
				return nil, err
			}
			i++
		default:
			word.WriteByte(c)
			started = true
		}
	}
	if endWord(); len(cur) > 0 || len(all) == 0 {
		if err := endCommand(); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func spin(p *process, args []string) (int, error) {
	s, err := number(args)
	if err != nil {
		return 2, p.errs([]byte("spin: " + err.Error() + "\n"))
	}
	ctx, cancel := context.WithCancel(p.ctx)
	defer cancel()
	until := make(chan error, 1)
	go func() { until <- pause(ctx, s) }()
	for {
		select {
		case err := <-until:
			return 0, err
		default:
			for i := range 100_000 {
				_ = i * i
			}
		}
	}
}

func yes(p *process, args []string) (int, error) {
	left, err := number(args)
	if err != nil {
		return 2, p.errs([]byte("yes: " + err.Error() + "\n"))
	}
	text := "y\n"
	if len(args) > 1 {
		text = strings.Join(args[1:], " ") + "\n"
	}
	block := bytes.Repeat([]byte(text), max(1, (64<<10)/len(text)))
	for n := int64(left); n > 0 && p.ctx.Err() == nil; {
		part := block[:min(n, int64(len(block)))]
		if err := p.write(part); err != nil {
			return 1, err
		}
		n -= int64(len(part))
	}
	return 0, context.Cause(p.ctx)
}

func cat(p *process, args []string) (int, error) {
	if len(args) == 0 {
		_, err := copyTo(p, writerFunc(p.write))
		return 0, err
	}
	for _, name := range args {
		at := p.in.abs(name, p.req.Cwd)
		p.in.mu.Lock()
		f, ok := p.in.files[at]
		p.in.mu.Unlock()
		if !ok {
			return 1, p.errs([]byte("cat: " + name + ": No such file or directory\n"))
		}
		if err := p.write(f.data); err != nil {
			return 1, err
		}
	}
	return 0, nil
}

type writerFunc func(p []byte) error

func (f writerFunc) Write(p []byte) (int, error) {
	if err := f(p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// copyTo reads the command's input to its end, or until the command is to end: a reader that blocks is then left behind,
// as its owner closes it when the command has ended.
func copyTo(p *process, w io.Writer) (int64, error) {
	if p.req.Stdin == nil {
		return 0, nil
	}
	type result struct {
		n   int64
		err error
	}
	over := make(chan result, 1)
	go func() {
		n, err := io.Copy(w, p.req.Stdin)
		over <- result{n, err}
	}()
	select {
	case r := <-over:
		return r.n, r.err
	case <-p.ctx.Done():
		return 0, context.Cause(p.ctx)
	}
}

func env(p *process, args []string) (int, error) {
	all := map[string]string{}
	for k, v := range p.in.spec.Env {
		all[k] = v
	}
	for k, v := range p.req.Env {
		all[k] = v
	}
	if len(args) > 0 {
		v, ok := all[args[0]]
		if !ok {
			return 1, nil
		}
		return 0, p.write([]byte(v + "\n"))
	}
	var names []string
	for k := range all {
		names = append(names, k)
	}
	slices.Sort(names)
	for _, k := range names {
		if err := p.write(fmt.Appendf(nil, "%s=%s\n", k, all[k])); err != nil {
			return 1, err
		}
	}
	return 0, nil
}
