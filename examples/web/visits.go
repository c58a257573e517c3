package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// credential is what the mesh lands for a required provision.
type credential struct {
	URL      string `json:"url"`
	Host     string `json:"host"`
	Port     int    `json:"port"`
	User     string `json:"user"`
	Password string `json:"password"`
	Database string `json:"database"`
}

// visits keeps the count. It holds one connection, and opens another when that is lost; the
// credential is read each time, because the mesh may have changed it.
type visits struct {
	file string

	mu   sync.Mutex
	conn *pgx.Conn
}

// answers bounds how long the database may take.
const answers = 3 * time.Second

func openVisits(file string) (*visits, error) {
	v := &visits{file: file}
	_, err := v.credential()
	return v, err
}

func (v *visits) credential() (credential, error) {
	var c credential
	text, err := os.ReadFile(v.file)
	if err != nil {
		return c, err
	}
	if err := json.Unmarshal(text, &c); err != nil {
		return c, errors.New("the database's credential is not JSON")
	}
	if c.Database == "" {
		c.Database = c.User
	}
	return c, nil
}

func (c credential) address() string {
	if c.URL != "" {
		return c.URL
	}
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword(c.User, c.Password),
		Host: net.JoinHostPort(c.Host, strconv.Itoa(c.Port)), Path: "/" + c.Database,
	}
	return u.String()
}

func (v *visits) database() string {
	c, _ := v.credential()
	return c.Database
}

// count adds a visit and gives how many there were.
func (v *visits) count(ctx context.Context) (n int64, err error) {
	err = v.query(ctx, "INSERT INTO visits DEFAULT VALUES RETURNING id", &n)
	return n, err
}

// check asks the database something.
func (v *visits) check(ctx context.Context) error {
	var n int64
	return v.query(ctx, "SELECT count(*) FROM visits", &n)
}

func (v *visits) query(ctx context.Context, sql string, into *int64) error {
	ctx, cancel := context.WithTimeout(ctx, answers)
	defer cancel()
	v.mu.Lock()
	defer v.mu.Unlock()
	conn, err := v.connection(ctx)
	if err != nil {
		return err
	}
	if err := conn.QueryRow(ctx, sql).Scan(into); err != nil {
		_ = conn.Close(context.WithoutCancel(ctx))
		v.conn = nil
		return fmt.Errorf("ask the database: %w", err)
	}
	return nil
}

func (v *visits) connection(ctx context.Context) (*pgx.Conn, error) {
	if v.conn != nil {
		return v.conn, nil
	}
	c, err := v.credential()
	if err != nil {
		return nil, err
	}
	conn, err := pgx.Connect(ctx, c.address())
	if err != nil {
		return nil, fmt.Errorf("connect to %s:%d: no connection", c.Host, c.Port) // the driver's words hold the user
	}
	if _, err := conn.Exec(ctx, "CREATE TABLE IF NOT EXISTS visits (id bigserial PRIMARY KEY, at timestamptz NOT NULL DEFAULT now())"); err != nil {
		_ = conn.Close(context.WithoutCancel(ctx))
		return nil, fmt.Errorf("make the table: %w", err)
	}
	v.conn = conn
	return conn, nil
}

func (v *visits) close() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.conn != nil {
		_ = v.conn.Close(context.Background())
	}
}
