package registry

import (
	"io"
	"net/http"
	"time"
)

// serverIdle is how long a client may neither send nor take a byte. It is longer than a
// client's own, which notices first and says so.
const serverIdle = 2 * DefaultIdle

// unstalled ends the connection of a client that has gone quiet in the middle of a transfer. A
// deadline for the whole would end large blobs on slow links.
func unstalled(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(w)
		r.Body = &liveBody{ReadCloser: r.Body, control: control}
		next.ServeHTTP(&liveWriter{ResponseWriter: w, control: control}, r)
		// What is left of a request must not end the connection's next one.
		_ = control.SetReadDeadline(time.Time{})
		_ = control.SetWriteDeadline(time.Time{})
	})
}

type liveBody struct {
	io.ReadCloser
	control *http.ResponseController
}

func (b *liveBody) Read(p []byte) (int, error) {
	_ = b.control.SetReadDeadline(time.Now().Add(serverIdle))
	n, err := b.ReadCloser.Read(p)
	if err != nil { // from here on the connection is only watched for its end
		_ = b.control.SetReadDeadline(time.Time{})
	}
	return n, err
}

type liveWriter struct {
	http.ResponseWriter
	control *http.ResponseController
}

func (w *liveWriter) Write(p []byte) (int, error) {
	_ = w.control.SetWriteDeadline(time.Now().Add(serverIdle))
	return w.ResponseWriter.Write(p)
}

// Unwrap is for [http.NewResponseController].
func (w *liveWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
