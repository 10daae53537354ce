package execd

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
)

// Codes of refused requests.
const (
	codeBadBody     = "INVALID_REQUEST_BODY"
	codeNoQuery     = "MISSING_QUERY"
	codeRuntime     = "RUNTIME_ERROR"
	codeBadFile     = "INVALID_FILE"
	codeBadContent  = "INVALID_FILE_CONTENT"
	codeBadMetadata = "INVALID_FILE_METADATA"
	codeNoFile      = "FILE_NOT_FOUND"
	codeNoContext   = "CONTEXT_NOT_FOUND"
	codeUnsupported = "NOT_SUPPORTED"
)

// failure is the body of a refused request.
type failure struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

func reply(w http.ResponseWriter, status int, v any) {
	p, err := json.Marshal(v)
	if err != nil {
		status, p = http.StatusInternalServerError, nil
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	// A client that has gone needs no answer.
	_, _ = w.Write(p)
}

func fail(w http.ResponseWriter, status int, code, format string, args ...any) {
	reply(w, status, failure{Code: code, Message: fmt.Sprintf(format, args...)})
}

// missing answers a request without a parameter.
func missing(w http.ResponseWriter, name string) {
	fail(w, http.StatusBadRequest, codeNoQuery, "missing query parameter '%s'", name)
}

// noRoute answers what there is no route for.
func noRoute(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/plain")
	w.WriteHeader(http.StatusNotFound)
	_, _ = io.WriteString(w, "404 page not found")
}

// maxBody bounds the JSON of a request; a command may be long.
const maxBody = 256 << 20

// decode reads a request's body. The rest behind its value is read too: only
// then the server notices that a client has gone.
func decode(w http.ResponseWriter, r *http.Request, v any) error {
	body := http.MaxBytesReader(w, r.Body, maxBody)
	if err := json.NewDecoder(body).Decode(v); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, body)
	return err
}

// invalidField tells of a field in the words in which this protocol does.
func invalidField(request, field, rule string) string {
	return fmt.Sprintf("Key: '%s.%s' Error:Field validation for '%[2]s' failed on the '%s' tag", request, field, rule)
}

// valid resolves a request's working directory; false: the request has been
// refused, for that reason or because of a problem.
func (s *Server) valid(w http.ResponseWriter, what, problem string, cwd *string) bool {
	if problem == "" {
		dir, err := s.workdir(*cwd)
		if err == nil {
			*cwd = dir
			return true
		}
		problem = err.Error()
	}
	fail(w, http.StatusBadRequest, codeBadBody, "%s%s", what, problem)
	return false
}
