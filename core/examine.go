package core

import "context"

// Fact is one thing that a provider found out about its configuration and its surroundings, for people who look for
// the reason why something does not work.
type Fact struct {
	Name    string // of what, such as "engine"
	Value   string // without secrets
	Origin  string // what chose it, such as a variable's name; "" when nothing did
	Problem string // what is wrong with it, and what to do; "" when nothing is
}

// Examiner is a Provider that can tell what it would work with.
type Examiner interface {
	// Examine looks at the backend and changes nothing. What can't be found out is a Fact with a problem.
	Examine(ctx context.Context) []Fact
}

// Examine gives what a provider tells about itself; nothing when it has nothing to tell.
func Examine(ctx context.Context, p Provider) []Fact {
	if e, ok := p.(Examiner); ok {
		return e.Examine(ctx)
	}
	return nil
}
