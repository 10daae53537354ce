package tests

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	// named is how SPECIFICATION.md writes the name of a test.
	named = regexp.MustCompile("`((?:Test|Fuzz)[A-Z]\\w*|[a-z0-9]+(?:_[a-z0-9]+){2,})`")
	// testNames are a Go test or fuzz target, a Python test, a case of a table.
	testNames = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(|^(?:async )?def (test_\w+)\(|\bname: +"(\w+)"`)
)

// A promise whose test was renamed or removed would go on looking held.
func TestSpecificationNamesTestsThatExist(t *testing.T) {
	root := filepath.Join("..", "..")
	text, err := os.ReadFile(filepath.Join(root, "SPECIFICATION.md"))
	if err != nil {
		t.Fatal(err)
	}
	exists := map[string]bool{}
	for _, folder := range []string{"agent", "capi", "core", "providers", "pty", "tests"} {
		err := filepath.WalkDir(filepath.Join(root, folder), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			isTest := strings.HasSuffix(path, "_test.go") || strings.HasSuffix(path, ".py") ||
				strings.Contains(filepath.ToSlash(path), "tests/go/suite/")
			if !isTest {
				return nil
			}
			source, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			for _, match := range testNames.FindAllStringSubmatch(string(source), -1) {
				exists[match[1]+match[2]+match[3]] = true
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	names := named.FindAllStringSubmatch(string(text), -1)
	if len(names) == 0 {
		t.Fatal("SPECIFICATION.md names no test")
	}
	for _, name := range names {
		if !exists[name[1]] {
			t.Errorf("SPECIFICATION.md says that %s holds a promise; there is no such test", name[1])
		}
	}
}
