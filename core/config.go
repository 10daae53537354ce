package core

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"sort"
	"strings"
)

// DecodeConfig reads a provider's configuration block into a struct with json
// tags, on top of the defaults that the struct already holds. A key that does
// not exist is KindUnknownKey and names the nearest one that does; null leaves the default.
func DecodeConfig(raw json.RawMessage, into any) error {
	if len(bytes.TrimSpace(raw)) == 0 || string(bytes.TrimSpace(raw)) == "null" {
		return nil
	}
	if err := checkKeys(raw, reflect.TypeOf(into).Elem(), ""); err != nil {
		return err
	}
	if err := json.Unmarshal(raw, into); err != nil {
		if field, what, ok := mistyped(err); ok {
			return Errorf(KindInvalid, "", "configuration key %q %s", field, what)
		}
		return Errorf(KindInvalid, "", "configuration: %w", err)
	}
	return nil
}

// Mistyped says of JSON with a value of the wrong type which one, and what it has to be, in words that do not need
// this package's source. Other errors stay as they are.
func Mistyped(err error) error {
	if field, what, ok := mistyped(err); ok {
		return fmt.Errorf("%s %s", field, what)
	}
	return err
}

func mistyped(err error) (field, what string, ok bool) {
	var wrong *json.UnmarshalTypeError
	if !errors.As(err, &wrong) || wrong.Field == "" {
		return "", "", false
	}
	got, _, _ := strings.Cut(wrong.Value, " ") // without a number's digits
	return wrong.Field, "must be " + kindWord(wrong.Type.Kind()) + ", not " + jsonWord(got), true
}

// kindWord is what users call a type.
func kindWord(k reflect.Kind) string {
	switch {
	case k == reflect.Bool:
		return "true or false"
	case k == reflect.String:
		return "a string"
	case k >= reflect.Int && k <= reflect.Uint64:
		return "a whole number"
	case k == reflect.Float64:
		return "a number"
	case k == reflect.Slice:
		return "a list"
	}
	return "a mapping"
}

// jsonWord is the same for what package json calls a value.
func jsonWord(value string) string {
	switch value {
	case "bool":
		return "true or false"
	case "array":
		return "a list"
	case "object":
		return "a mapping"
	}
	return "a " + value
}

func checkKeys(raw json.RawMessage, t reflect.Type, at string) error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || string(bytes.TrimSpace(raw)) == "null" {
		return nil
	}
	var given map[string]json.RawMessage
	if err := json.Unmarshal(raw, &given); err != nil {
		what := "configuration"
		if at != "" {
			what = fmt.Sprintf("configuration key %q", at)
		}
		return Errorf(KindInvalid, "", "%s must be a mapping", what)
	}
	known := map[string]reflect.Type{}
	var names []string
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		if name == "" || name == "-" {
			continue
		}
		known[name] = t.Field(i).Type
		names = append(names, name)
	}
	sort.Strings(names)
	keys := make([]string, 0, len(given))
	for k := range given {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	for _, k := range keys {
		ft, ok := known[k]
		full := strings.TrimPrefix(at+"."+k, ".")
		if !ok {
			msg := fmt.Sprintf("unknown configuration key %q; allowed: %s", full, strings.Join(names, ", "))
			if near := Nearest(k, names); near != "" {
				msg += fmt.Sprintf(" (did you mean %q?)", near)
			}
			return Errorf(KindUnknownKey, "", "%s", msg)
		}
		if err := checkKeys(given[k], ft, full); err != nil {
			return err
		}
	}
	return nil
}
