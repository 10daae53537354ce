package opensandbox

import (
	"crypto/rand"
	"encoding/hex"
	"os"
	"os/user"
	"strings"
	"sync"
)

// labelLength is the most that a backend takes as a label's value.
const labelLength = 63

// labelValue makes a text fit for a label.
func labelValue(s string) string {
	var b strings.Builder
	replaced := false
	for _, r := range s {
		ok := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '.' || r == '-'
		switch {
		case ok:
			b.WriteRune(r)
		case !replaced:
			b.WriteByte('_')
		}
		replaced = !ok
	}
	const edge = "._-"
	v := strings.Trim(b.String(), edge)
	if len(v) > labelLength {
		v = strings.Trim(v[:labelLength], edge)
	}
	if v == "" {
		return "metadata"
	}
	return v
}

// processRun names the run of a process that was given no name for it.
var processRun = sync.OnceValue(func() string {
	var p [6]byte
	_, _ = rand.Read(p[:]) // does not fail
	return hex.EncodeToString(p[:])
})

// metadata tells whose a sandbox is: what the configuration says goes before the
// project's variables, those before the batch system's.
func (a *attributionConfig) metadata() map[string]string {
	if !a.Enabled {
		return nil
	}
	m := map[string]string{}
	put := func(key string, values ...string) {
		for _, v := range values {
			if v = strings.TrimSpace(v); v != "" {
				m[a.KeyPrefix+key] = v
				return
			}
		}
	}
	given := func(v *string) string {
		if v == nil {
			return ""
		}
		return *v
	}
	put("team", given(a.Team), os.Getenv("NEMO_GYM_TEAM"), os.Getenv("SLURM_JOB_ACCOUNT"))
	put("user", given(a.User), os.Getenv("NEMO_GYM_USER"), os.Getenv("SLURM_JOB_USER"), login())
	put("workload", given(a.Workload), os.Getenv("NEMO_GYM_WORKLOAD"), os.Getenv("SLURM_JOB_NAME"), os.Getenv("NEMO_GYM_CONFIG_PATH"))
	put("run", given(a.Run), os.Getenv("NEMO_GYM_RUN_ID"), processRun())
	return m
}

// login is who runs this process, unless that says nothing.
func login() string {
	u, err := user.Current()
	if err != nil || strings.EqualFold(u.Username, "root") {
		return ""
	}
	return u.Username
}
