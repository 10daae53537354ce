package core

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestUnknownProviderNamesTheNearest(t *testing.T) {
	r := NewRegistry()
	f := func(json.RawMessage) (Provider, error) { return &scripted{}, nil }
	r.Register("docker", f)
	r.Register("local", f)
	_, err := r.New("dokcer", nil)
	assert.Equal(t, KindInvalid, KindOf(err))
	assert.ErrorContains(t, err, `available: docker, local (did you mean "docker"?)`)
	_, err = r.New("kubernetes", nil)
	assert.NotContains(t, err.Error(), "did you mean")
	assert.Panics(t, func() { r.Register("local", f) })
}

func TestConfigKeysThatDoNotExistAreErrors(t *testing.T) {
	type block struct {
		TimeoutS float64 `json:"timeout_s"`
		Mode     string  `json:"mode"`
	}
	type config struct {
		Exec  block  `json:"exec"`
		Shell string `json:"shell"`
	}
	c := config{Exec: block{TimeoutS: 180}, Shell: "sh"}
	require.NoError(t, DecodeConfig(json.RawMessage(`{"exec": {"mode": "agent"}, "shell": null}`), &c))
	assert.Equal(t, config{Exec: block{180, "agent"}, Shell: "sh"}, c)

	err := DecodeConfig(json.RawMessage(`{"exec": {"timeout": 3}}`), &c)
	assert.Equal(t, KindUnknownKey, KindOf(err))
	assert.ErrorContains(t, err, `"exec.timeout"`)
	assert.ErrorContains(t, err, `did you mean "timeout_s"?`)
	assert.Equal(t, KindInvalid, KindOf(DecodeConfig(json.RawMessage(`{"exec": 3}`), &c)))
	for given, want := range map[string]string{
		`{"shell": 3}`:                 `configuration key "shell" must be a string, not a number`,
		`{"exec": {"timeout_s": "3"}}`: `configuration key "exec.timeout_s" must be a number, not a string`,
		`{"exec": {"mode": [1]}}`:      `configuration key "exec.mode" must be a string, not a list`,
		`{"exec": {"mode": {}}}`:       `configuration key "exec.mode" must be a string, not a mapping`,
		`{"exec": {"mode": true}}`:     `configuration key "exec.mode" must be a string, not true or false`,
	} {
		err := DecodeConfig(json.RawMessage(given), &c)
		assert.Equal(t, KindInvalid, KindOf(err), given)
		assert.ErrorContains(t, err, want)
	}
	require.NoError(t, DecodeConfig(nil, &c))
}

func TestSpecErrorsNameTheField(t *testing.T) {
	for want, s := range map[string]Spec{
		"workdir":             {Workdir: "relative"},
		"ttl_s":               {TTL: -1},
		"between 1 and 65535": {Ports: []int{0}},
		"Duplicate":           {Ports: []int{80, 80}},
		"unique":              {Sidecars: []SidecarSpec{{Name: "a", Image: "b"}, {Name: "a", Image: "c"}}},
		"resources":           {Resources: Resources{CPU: -1}},
		"variable name":       {Env: map[string]string{"A=": "b"}},
	} {
		err := s.Validate()
		assert.Equal(t, KindInvalid, KindOf(err))
		assert.ErrorContains(t, err, want)
	}
	secret := Spec{Env: map[string]string{"TOKEN": "hunter2\x00"}}
	assert.NotContains(t, secret.Validate().Error(), "hunter2")
	require.NoError(t, (&Spec{}).Validate())
}
