package reconcile_test

import (
	"context"
	"crypto/rand"
	"log/slog"
	"net"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/mesh-control/mesh/internal/pki"
	"github.com/mesh-control/mesh/reconcile"
	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/apiclient"
	"github.com/mesh-control/mesh/reconcile/extension"
)

// As the program does it: the same controller again, over HTTPS.
func TestServeAnswersHTTPSUntilItsContextEnds(t *testing.T) {
	m := newMesh(t)
	token := rand.Text()
	m.Transact(func(tx pgx.Tx) error { return extension.PutOperator(t.Context(), tx, "anna", token) })
	m.Stop()
	authority, err := pki.NewCA("lab")
	if err != nil {
		t.Fatal(err)
	}
	config := m.Config
	if config.Certificate, config.Key, err = authority.Issue("controller", []string{pki.ControllerName}); err != nil {
		t.Fatal(err)
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	config.Listen = []string{free.Addr().String()}
	_ = free.Close()
	controller, err := reconcile.New(t.Context(), config, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer controller.Close()
	ctx, end := context.WithCancel(t.Context())
	defer end()
	served := make(chan error, 1)
	go func() { served <- controller.Serve(ctx) }()

	client := apiclient.New(apiclient.ContextFile{
		Mesh: "lab", URL: "https://" + config.Listen[0], Fingerprint: pki.Fingerprint(authority.Cert), Token: token,
	})
	defer client.Close()
	until(t, "it answers", func() bool {
		version, err := api.SystemVersion.Do(t.Context(), client, api.None{})
		return err == nil && version.Mesh == "lab"
	})
	end()
	if err := <-served; err != nil {
		t.Error(err)
	}
	if _, err := api.SystemVersion.Do(t.Context(), client, api.None{}); err == nil {
		t.Error("it answers after its end")
	}
}
