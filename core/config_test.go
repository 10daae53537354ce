package core

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestAMistypedValueIsNamedInWords(t *testing.T) {
	var into struct {
		Block struct {
			Rows  int      `json:"rows"`
			Text  string   `json:"text"`
			Ready float64  `json:"ready"`
			Flag  bool     `json:"flag"`
			Names []string `json:"names"`
		} `json:"block"`
	}
	for raw, want := range map[string]string{
		`{"block":{"rows":"24"}}`:  "block.rows must be a whole number, not a string",
		`{"block":{"rows":24.5}}`:  "block.rows must be a whole number, not a number",
		`{"block":{"text":5}}`:     "block.text must be a string, not a number",
		`{"block":{"ready":true}}`: "block.ready must be a number, not true or false",
		`{"block":{"flag":"no"}}`:  "block.flag must be true or false, not a string",
		`{"block":{"names":"a"}}`:  "block.names must be a list, not a string",
	} {
		err := Mistyped(json.Unmarshal([]byte(raw), &into))
		assert.ErrorContains(t, err, want)
		assert.NotContains(t, err.Error(), "Go struct")
	}
	syntax := json.Unmarshal([]byte("{"), &into)
	assert.Equal(t, syntax, Mistyped(syntax))
}

func TestSidecarsAreCheckedAsSandboxesAre(t *testing.T) {
	side := SidecarSpec{Name: "a", Image: "i"}
	assert.NoError(t, (&Spec{Sidecars: []SidecarSpec{side}}).Validate())
	negative, odd := side, side
	negative.Resources.CPU = -1
	odd.Env = map[string]string{"A=": "secret-value"}
	assert.ErrorContains(t, (&Spec{Sidecars: []SidecarSpec{negative}}).Validate(), `sidecar "a" must not be negative`)
	err := (&Spec{Sidecars: []SidecarSpec{odd}}).Validate()
	assert.ErrorContains(t, err, `env of sidecar "a"`)
	assert.NotContains(t, err.Error(), "secret-value")
}
