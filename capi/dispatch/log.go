package dispatch

import (
	"context"
	"encoding/json"
	"log/slog"
	"strings"
)

// logRecord is the payload of a LOG event. Level is slog's number: -4 debug, 0 info, 4 warning, 8 error.
type logRecord struct {
	Level   int    `json:"level"`
	Message string `json:"message"`
}

// LogHandler sends records of at least a level to the newest bridge that takes them; without one they are dropped. It
// never prints.
func (l *Library) LogHandler(level slog.Leveler) slog.Handler {
	return &logHandler{lib: l, level: level}
}

type logHandler struct {
	lib    *Library
	level  slog.Leveler
	prefix string // of later attributes' names
	attrs  string
}

func (h *logHandler) Enabled(_ context.Context, level slog.Level) bool {
	return level >= h.level.Level()
}

func (h *logHandler) Handle(_ context.Context, r slog.Record) error {
	var text strings.Builder
	text.WriteString(r.Message)
	text.WriteString(h.attrs)
	r.Attrs(func(a slog.Attr) bool {
		writeAttr(&text, h.prefix, a)
		return true
	})
	payload, err := json.Marshal(logRecord{Level: int(r.Level), Message: clip(text.String(), maxMessage)})
	if err != nil {
		return err
	}
	h.lib.mu.Lock()
	bridges := append([]*Bridge(nil), h.lib.bridges...)
	h.lib.mu.Unlock()
	for i := len(bridges) - 1; i >= 0; i-- {
		if bridges[i].log(payload) {
			break
		}
	}
	return nil
}

func writeAttr(text *strings.Builder, prefix string, a slog.Attr) {
	v := a.Value.Resolve()
	if v.Kind() == slog.KindGroup {
		if a.Key != "" {
			prefix += a.Key + "."
		}
		for _, inner := range v.Group() {
			writeAttr(text, prefix, inner)
		}
		return
	}
	if a.Key != "" {
		text.WriteString(" " + prefix + a.Key + "=" + v.String())
	}
}

func (h *logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	var text strings.Builder
	text.WriteString(h.attrs)
	for _, a := range attrs {
		writeAttr(&text, h.prefix, a)
	}
	c := *h
	c.attrs = text.String()
	return &c
}

func (h *logHandler) WithGroup(name string) slog.Handler {
	c := *h
	if name != "" {
		c.prefix += name + "."
	}
	return &c
}
