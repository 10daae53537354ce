package local

import (
	"maps"
	"os"
	"slices"
	"strings"
)

// inherited are the variables of this process that commands get: enough to find
// and run programs, and nothing that is likely to be a secret.
var inherited = []string{"PATH", "HOME", "LANG", "TZ", "TERM", "USER", "SHELL"}

// environ is the environment of a sandbox: the inherited variables, those that
// the configuration names besides, and over them the spec's.
func environ(also []string, spec map[string]string) []string {
	env := map[string]string{}
	for _, kv := range os.Environ() {
		k, v, _ := strings.Cut(kv, "=")
		if slices.Contains(inherited, k) || strings.HasPrefix(k, "LC_") || slices.Contains(also, k) {
			env[k] = v
		}
	}
	maps.Copy(env, spec)
	list := make([]string, 0, len(env))
	for _, k := range slices.Sorted(maps.Keys(env)) {
		list = append(list, k+"="+env[k])
	}
	return list
}
