package execd

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"
)

const (
	cpuSample  = time.Second // over which the use of the processors is measured
	watchPause = time.Second // between two measurements
)

// measurement is the load of the machine that the sandbox sees.
type measurement struct {
	CPUCount  int     `json:"cpu_count"`
	CPUUsed   float64 `json:"cpu_used_pct"`
	MemTotal  float64 `json:"mem_total_mib"`
	MemUsed   float64 `json:"mem_used_mib"`
	Timestamp int64   `json:"timestamp"` // milliseconds
}

func (s *Server) metrics(w http.ResponseWriter, r *http.Request) {
	m, err := measure(r.Context())
	if err != nil {
		fail(w, http.StatusInternalServerError, codeRuntime, "error measuring: %v", err)
		return
	}
	reply(w, http.StatusOK, m)
}

// watchMetrics sends one measurement a line until the client leaves.
func (s *Server) watchMetrics(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-cache")
	w.WriteHeader(http.StatusOK)
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	for {
		m, err := measure(ctx)
		if err != nil || json.NewEncoder(w).Encode(m) != nil || http.NewResponseController(w).Flush() != nil {
			return
		}
		if wait(ctx, watchPause) != nil {
			return
		}
	}
}

func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func measure(ctx context.Context) (measurement, error) {
	busy, all, err := cpuTimes()
	if err != nil {
		return measurement{}, err
	}
	if err := wait(ctx, cpuSample); err != nil {
		return measurement{}, err
	}
	busy2, all2, err := cpuTimes()
	if err != nil {
		return measurement{}, err
	}
	m := measurement{CPUCount: runtime.NumCPU(), Timestamp: time.Now().UnixMilli()}
	if all2 > all {
		m.CPUUsed = 100 * float64(busy2-busy) / float64(all2-all)
	}
	m.MemTotal, m.MemUsed, err = memoryUse()
	return m, err
}

// cpuTimes sums up what all processors have done since the start, in ticks.
func cpuTimes() (busy, all uint64, err error) {
	raw, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0, err
	}
	first, _, _ := strings.Cut(string(raw), "\n")
	for i, f := range strings.Fields(first) {
		n, err := strconv.ParseUint(f, 10, 64)
		if i == 0 || i > 8 || err != nil {
			continue // the name; what guests used is in the users' time already
		}
		all += n
		if i != 4 && i != 5 { // idle, and waiting for disks
			busy += n
		}
	}
	return busy, all, nil
}

// memoryUse reads the memory there is and the memory in use, in MiB.
func memoryUse() (total, used float64, err error) {
	raw, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, 0, err
	}
	var free float64
	for line := range strings.Lines(string(raw)) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		n, err := strconv.ParseFloat(f[1], 64) // KiB
		if err != nil {
			continue
		}
		switch f[0] {
		case "MemTotal:":
			total = n / 1024
		case "MemAvailable:":
			free = n / 1024
		}
	}
	return total, total - free, nil
}
