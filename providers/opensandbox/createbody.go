package opensandbox

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// defaultTTL is the life of a sandbox whose spec names none: nobody would end one that its creator lost.
const defaultTTL = 600 * time.Second

// createBody is the request that makes a sandbox.
type createBody struct {
	Image            *imageRef         `json:"image,omitempty"`
	SnapshotID       string            `json:"snapshotId,omitempty"`
	Platform         map[string]any    `json:"platform,omitempty"`
	Timeout          int64             `json:"timeout"`
	ResourceLimits   map[string]string `json:"resourceLimits"`
	ResourceRequests map[string]string `json:"resourceRequests,omitempty"`
	Env              map[string]string `json:"env,omitempty"`
	Metadata         map[string]string `json:"metadata,omitempty"`
	Entrypoint       []string          `json:"entrypoint"`
	NetworkPolicy    *networkPolicy    `json:"networkPolicy,omitempty"`
	SecureAccess     bool              `json:"secureAccess"`
	Volumes          []map[string]any  `json:"volumes,omitempty"`
	Extensions       map[string]string `json:"extensions,omitempty"`
}

type imageRef struct {
	URI  string         `json:"uri"`
	Auth map[string]any `json:"auth,omitempty"`
}

type networkPolicy struct {
	DefaultAction string `json:"defaultAction"`
	Egress        []any  `json:"egress,omitempty"`
}

// options are the spec's provider options.
type options struct {
	ImageAuth        map[string]any   `json:"image_auth"`
	NetworkPolicy    *map[string]any  `json:"network_policy"`
	Platform         map[string]any   `json:"platform"`
	SnapshotID       *string          `json:"snapshot_id"`
	Volumes          []map[string]any `json:"volumes"`
	SkipHealthCheck  *bool            `json:"skip_health_check"`
	Extensions       map[string]any   `json:"extensions"`
	ResourceRequests json.RawMessage  `json:"resource_requests"`
}

var optionNames = []string{
	"extensions", "image_auth", "network_policy", "platform", "resource_requests", "skip_health_check", "snapshot_id", "volumes",
}

// readOptions checks the spec's provider options.
func readOptions(given map[string]any) (options, error) {
	var o options
	fail := func(format string, args ...any) (options, error) {
		return o, core.Errorf(core.KindInvalid, "", format, args...)
	}
	var unknown []string
	for k := range given {
		if !slices.Contains(optionNames, k) {
			unknown = append(unknown, k)
		}
	}
	if len(unknown) > 0 {
		slices.Sort(unknown)
		msg := fmt.Sprintf("Unknown OpenSandbox provider option(s): %s. Supported: %s", strings.Join(unknown, ", "), strings.Join(optionNames, ", "))
		if near := core.Nearest(unknown[0], optionNames); near != "" {
			msg += fmt.Sprintf(" (did you mean %q?)", near)
		}
		return fail("%s", msg)
	}
	kinds := map[string]any{
		"image_auth": &o.ImageAuth, "network_policy": &o.NetworkPolicy, "platform": &o.Platform, "snapshot_id": &o.SnapshotID,
		"volumes": &o.Volumes, "skip_health_check": &o.SkipHealthCheck, "extensions": &o.Extensions, "resource_requests": &o.ResourceRequests,
	}
	words := map[string]string{"snapshot_id": "a string", "volumes": "a list of mappings", "skip_health_check": "a boolean"}
	for k, v := range given {
		if v == nil {
			continue
		}
		raw, err := json.Marshal(v)
		if err != nil {
			return fail("provider option %s can't be written as JSON: %w", k, err)
		}
		if json.Unmarshal(raw, kinds[k]) != nil { // its text could show a secret value
			word, ok := words[k]
			if !ok {
				word = "a mapping"
			}
			return fail("provider option %s must be %s", k, word)
		}
	}
	return o, nil
}

// newCreateBody makes the request for a spec.
func newCreateBody(c *config, spec core.Spec, o options) (*createBody, error) {
	fail := func(format string, args ...any) (*createBody, error) {
		return nil, core.Errorf(core.KindInvalid, "", format, args...)
	}
	b := &createBody{Env: spec.Env, Platform: o.Platform, Entrypoint: spec.Entrypoint, Timeout: int64(defaultTTL / time.Second)}
	if o.SnapshotID != nil {
		b.SnapshotID = *o.SnapshotID
	}
	if (spec.Image == "") == (b.SnapshotID == "") {
		return fail("Exactly one of image or snapshot_id must be specified")
	}
	if spec.Image != "" {
		b.Image = &imageRef{URI: spec.Image, Auth: o.ImageAuth}
	}
	if spec.TTL > 0 {
		b.Timeout = int64(spec.TTL / time.Second)
	}
	if len(b.Entrypoint) == 0 {
		b.Entrypoint = []string{"tail", "-f", "/dev/null"}
	}
	b.ResourceLimits = resourceMap(spec.Resources)
	if len(b.ResourceLimits) == 0 {
		b.ResourceLimits = map[string]string{"cpu": "1", "memory": "2Gi"}
	}
	var err error
	if b.ResourceRequests, err = resourceRequests(o.ResourceRequests, b.ResourceLimits); err != nil {
		return nil, err
	}
	if b.NetworkPolicy, err = readNetworkPolicy(o.NetworkPolicy); err != nil {
		return nil, err
	}
	if b.Volumes, err = readVolumes(o.Volumes); err != nil {
		return nil, err
	}
	if b.Extensions, err = readExtensions(o.Extensions, c.Create.ImagePullPolicy); err != nil {
		return nil, err
	}
	b.Metadata = map[string]string{}
	for k, v := range c.Attribution.metadata() {
		b.Metadata[k] = labelValue(v)
	}
	for k, v := range spec.Metadata {
		b.Metadata[k] = labelValue(v)
	}
	return b, nil
}

func resourceMap(r core.Resources) map[string]string {
	m := map[string]string{}
	if r.CPU > 0 {
		m["cpu"] = strconv.FormatFloat(r.CPU, 'f', -1, 64)
	}
	if r.MemoryMiB > 0 {
		m["memory"] = strconv.Itoa(r.MemoryMiB) + "Mi"
	}
	if r.DiskGiB > 0 {
		m["ephemeral-storage"] = strconv.Itoa(r.DiskGiB) + "Gi"
	}
	if r.GPU > 0 {
		m["gpu"] = strconv.Itoa(r.GPU)
	}
	if r.GPUType != "" {
		m["gpu_type"] = r.GPUType
	}
	return m
}

var resourceKeys = []string{"cpu", "disk_gib", "gpu", "gpu_type", "memory_mib"}

// resourceRequests are the resources that are asked for beside the limits: none, the same, or others.
func resourceRequests(raw json.RawMessage, limits map[string]string) (map[string]string, error) {
	fail := func(format string, args ...any) (map[string]string, error) {
		return nil, core.Errorf(core.KindInvalid, "", format, args...)
	}
	if len(raw) == 0 {
		return nil, nil
	}
	var word string
	if json.Unmarshal(raw, &word) == nil {
		if word != "limits" {
			return fail("provider option resource_requests must be a mapping or %q", "limits")
		}
		return maps.Clone(limits), nil
	}
	var given map[string]any
	if json.Unmarshal(raw, &given) != nil {
		return fail("provider option resource_requests must be a mapping or %q", "limits")
	}
	var r core.Resources
	for k, v := range given {
		if v == nil {
			continue
		}
		text := plainText(v)
		number, err := strconv.ParseFloat(text, 64)
		whole := err == nil && number == float64(int(number))
		switch {
		case !slices.Contains(resourceKeys, k):
			return fail("provider option resource_requests has an unknown key %q; allowed: %s", k, strings.Join(resourceKeys, ", "))
		case k == "gpu_type":
			r.GPUType = text
			continue
		case err != nil || number < 0 || k != "cpu" && !whole:
			return fail("provider option resource_requests: %s=%s is no amount", k, text)
		}
		switch k {
		case "cpu":
			r.CPU = number
		case "memory_mib":
			r.MemoryMiB = int(number)
		case "disk_gib":
			r.DiskGiB = int(number)
		case "gpu":
			r.GPU = int(number)
		}
	}
	return resourceMap(r), nil
}

// readNetworkPolicy reads the policy in either spelling. One that says nothing denies.
func readNetworkPolicy(given *map[string]any) (*networkPolicy, error) {
	if given == nil {
		return nil, nil
	}
	p := &networkPolicy{DefaultAction: "deny"}
	for k, v := range *given {
		if v == nil {
			continue
		}
		switch k {
		case "defaultAction", "default_action":
			action, _ := v.(string)
			if action != "allow" && action != "deny" {
				return nil, core.Errorf(core.KindInvalid, "", "provider option network_policy: %s must be allow or deny", k)
			}
			p.DefaultAction = action
		case "egress":
			rules, ok := v.([]any)
			if !ok {
				return nil, core.Errorf(core.KindInvalid, "", "provider option network_policy: egress must be a list of rules")
			}
			p.Egress = rules
		default:
			return nil, core.Errorf(core.KindInvalid, "", "provider option network_policy has an unknown key %q; allowed: default_action, egress", k)
		}
	}
	return p, nil
}

var volumeBackends = []string{"host", "pvc", "ossfs"}

// readVolumes checks the volumes and spells their defaults out.
func readVolumes(given []map[string]any) ([]map[string]any, error) {
	var volumes []map[string]any
	for n, v := range given {
		var backends []string
		out := map[string]any{"readOnly": false}
		for k, val := range v {
			if val == nil {
				continue
			}
			if slices.Contains(volumeBackends, k) {
				backends = append(backends, k)
			}
			out[k] = val
		}
		for _, key := range []string{"name", "mountPath"} {
			if text, _ := out[key].(string); text == "" {
				return nil, core.Errorf(core.KindInvalid, "", "provider option volumes: volume %d needs a %s", n, key)
			}
		}
		if len(backends) != 1 {
			return nil, core.Errorf(core.KindInvalid, "", "provider option volumes: volume %v needs exactly one backend of %s", out["name"], strings.Join(volumeBackends, ", "))
		}
		if claim, ok := out["pvc"].(map[string]any); ok {
			all := map[string]any{"createIfNotExists": true, "deleteOnSandboxTermination": false, "storageClass": nil, "storage": nil, "accessModes": nil}
			maps.Copy(all, claim)
			out["pvc"] = all
		}
		volumes = append(volumes, out)
	}
	return volumes, nil
}

// The pull policy has one key for each back end of the server.
const (
	keyPullPolicy       = "imagePullPolicy"
	keyPullPolicyOpaque = "opensandbox.extensions.image-pull-policy"
)

func readExtensions(given map[string]any, pullPolicy *string) (map[string]string, error) {
	ext := map[string]string{}
	for k, v := range given {
		ext[k] = plainText(v)
	}
	policy, ok := ext[keyPullPolicy]
	if !ok {
		policy, ok = ext[keyPullPolicyOpaque]
	}
	if !ok && pullPolicy != nil {
		policy, ok = *pullPolicy, true
	}
	if ok {
		if !slices.Contains(pullPolicies, policy) {
			return nil, core.Errorf(core.KindInvalid, "", "image_pull_policy must be one of: %s", strings.Join(pullPolicies, ", "))
		}
		ext[keyPullPolicy], ext[keyPullPolicyOpaque] = policy, policy
	}
	return ext, nil
}

// plainText is a value of a mapping as its writer means it.
func plainText(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case bool:
		if v {
			return "True"
		}
		return "False"
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64)
	}
	p, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(bytes.TrimSpace(p))
}
