package core

import (
	"encoding/json"
	"fmt"
	"slices"
	"sort"
	"strings"
)

// Factory makes a provider from its configuration block (a JSON object; nil
// means defaults). A key that does not exist is KindUnknownKey, a bad value KindInvalid.
type Factory func(config json.RawMessage) (Provider, error)

// Registry maps provider names to factories. It is a value that its owner
// builds and passes on; nothing registers itself.
type Registry struct {
	factories map[string]Factory
}

// NewRegistry makes an empty registry.
func NewRegistry() *Registry { return &Registry{factories: map[string]Factory{}} }

// Register adds a provider. A name that is empty or taken is a mistake in the
// program, so it panics.
func (r *Registry) Register(name string, f Factory) {
	if name == "" || f == nil {
		panic("core: Register needs a name and a factory")
	}
	if _, ok := r.factories[name]; ok {
		panic(fmt.Sprintf("core: provider %q is registered twice", name))
	}
	r.factories[name] = f
}

// Names lists the registered names, sorted.
func (r *Registry) Names() []string {
	names := make([]string, 0, len(r.factories))
	for n := range r.factories {
		names = append(names, n)
	}
	sort.Strings(names)
	return names
}

// New makes a provider by name.
func (r *Registry) New(name string, config json.RawMessage) (Provider, error) {
	f, ok := r.factories[name]
	if !ok {
		msg := fmt.Sprintf("Unknown sandbox provider %q; available: %s", name, strings.Join(r.Names(), ", "))
		if near := Nearest(name, r.Names()); near != "" {
			msg += fmt.Sprintf(" (did you mean %q?)", near)
		}
		return nil, Errorf(KindInvalid, "", "%s", msg)
	}
	return f(config)
}

// Nearest finds the candidate that is most probably meant by a mistyped name,
// or "" when none is close.
func Nearest(name string, candidates []string) string {
	best, bestDist := "", 1+len(name)/3
	for _, c := range slices.Sorted(slices.Values(candidates)) {
		if d := editDistance(strings.ToLower(name), strings.ToLower(c)); d < bestDist || (d == bestDist && best == "") {
			best, bestDist = c, d
		}
	}
	return best
}

// editDistance counts the insertions, deletions and substitutions between two short names.
func editDistance(a, b string) int {
	prev := make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		cur := make([]int, len(b)+1)
		cur[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			cur[j] = min(prev[j]+1, cur[j-1]+1, prev[j-1]+cost)
		}
		prev = cur
	}
	return prev[len(b)]
}
