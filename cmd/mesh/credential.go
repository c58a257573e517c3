package main

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/mesh-control/mesh/internal/giturl"
	"github.com/mesh-control/mesh/reconcile/api"
	"github.com/mesh-control/mesh/reconcile/apiclient"
	"github.com/mesh-control/mesh/schema"
)

// credentialFiles name where the parts of a credential stand. No part of one is ever an
// argument: arguments are seen by everybody on the machine, and kept by shells.
type credentialFiles struct {
	user                       string
	token                      string // "-" is standard input
	key, passphrase, knownHost string
}

func (a *app) repoCredentialCommand() *cobra.Command {
	var files credentialFiles
	var remove bool
	command := &cobra.Command{
		Use:   "credential URL [--token-file F | --ssh-key F --known-hosts F | --remove]",
		Short: "Give, show or remove what a private repository is read with, never its value",
		Long: "Without flags it shows what kind of credential a repository has and which builders can use it.\n" +
			"What is given is sealed to the catalogue and, by it, to every builder; nobody else can read it.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch url := args[0]; {
			case remove && files != credentialFiles{}, files.token != "" && files.key != "", (files.key == "") != (files.knownHost == ""):
				return usage("give one of --token-file, --ssh-key with --known-hosts, and --remove")
			case remove:
				return a.removeCredential(cmd, url)
			case files == credentialFiles{}:
				return a.showCredential(cmd, url)
			default:
				return a.giveCredential(cmd, url, files)
			}
		},
	}
	flags := command.Flags()
	flags.StringVar(&files.token, "token-file", "", "file with the token or password for an http address; - reads standard input")
	flags.StringVar(&files.user, "user", "", "user the token or key belongs to (default git, or the address's own)")
	flags.StringVar(&files.key, "ssh-key", "", "file with an OpenSSH private key")
	flags.StringVar(&files.passphrase, "passphrase-file", "", "file with the passphrase of the private key")
	flags.StringVar(&files.knownHost, "known-hosts", "", "known_hosts file with the ssh server's keys; no other is accepted")
	flags.BoolVar(&remove, "remove", false, "forget the credential, in the catalogue and for every builder")
	return command
}

func (a *app) giveCredential(cmd *cobra.Command, url string, files credentialFiles) error {
	credential, err := a.readCredential(url, files)
	if err != nil {
		return err
	}
	return a.ask(cmd, func(ctx context.Context, client *apiclient.Client) error {
		out, err := api.RepositoryCredential.Do(ctx, client, api.RepositoryCredentialIn{URL: url, Credential: credential})
		if err != nil {
			return err
		}
		if strings.HasPrefix(url, "http://") {
			fmt.Fprintf(a.stderr, "%s is read over http: everybody on the way sees the token\n", url)
		}
		return a.show(out, func() {
			fmt.Fprintf(a.stdout, "%s of %s is sealed to the catalogue; mesh repo show %s says whether it is taken\n", out.Kind, url, url)
		})
	})
}

func (a *app) readCredential(url string, files credentialFiles) (schema.RepositoryCredential, error) {
	c := schema.RepositoryCredential{User: files.user}
	if files.key == "" && files.token == "" {
		return c, usage("name the file of the token or the key: --token-file F, or --ssh-key F --known-hosts F")
	}
	var err error
	if files.key == "" {
		c.Password, err = a.secretLine(files.token)
		return c, err
	}
	key, err := a.secretFile(files.key)
	if err != nil {
		return c, err
	}
	c.PrivateKey = string(key)
	if files.passphrase != "" {
		if c.Password, err = a.secretLine(files.passphrase); err != nil {
			return c, err
		}
	}
	c.HostKeys, err = pinnedHostKeys(files.knownHost, url)
	return c, err
}

// secretFile reads a secret from a file; "-" is standard input.
func (a *app) secretFile(file string) ([]byte, error) {
	if file == "-" {
		file = ""
	}
	return a.secretValue(file)
}

// secretLine reads a secret that is one line.
func (a *app) secretLine(file string) (string, error) {
	value, err := a.secretFile(file)
	return strings.TrimRight(string(value), "\r\n"), err
}

// pinnedHostKeys are the keys a known_hosts file holds of the server at url, as lines of
// authorized_keys. Names that are hashed, patterns and ports are the file's to match.
func pinnedHostKeys(file, url string) ([]string, error) {
	u, err := giturl.Parse(url)
	if err != nil {
		return nil, usage("%v", err)
	}
	known, err := knownhosts.New(file)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	port := u.Port
	if port == "" {
		port = "22"
	}
	// A key nobody has is refused with the list of those that would do.
	stranger, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	key, err := ssh.NewPublicKey(stranger)
	if err != nil {
		return nil, err
	}
	var refused *knownhosts.KeyError
	err = known(net.JoinHostPort(u.Host, port), &net.TCPAddr{IP: net.IPv4zero}, key)
	if !errors.As(err, &refused) || len(refused.Want) == 0 {
		return nil, &outcome{code: exitUsage, message: fmt.Sprintf("%s holds no key of %s", file, net.JoinHostPort(u.Host, port)),
			hints: []string{"ssh-keyscan -p " + port + " " + u.Host + " shows what the server offers; compare it with what its owner says"}}
	}
	var lines []string
	for _, want := range refused.Want {
		lines = append(lines, strings.TrimSpace(string(ssh.MarshalAuthorizedKey(want.Key))))
	}
	return lines, nil
}

func (a *app) removeCredential(cmd *cobra.Command, url string) error {
	return a.ask(cmd, func(ctx context.Context, client *apiclient.Client) error {
		if err := a.confirm("forget what " + url + " is read with?"); err != nil {
			return err
		}
		if _, err := api.RepositoryCredentialRemove.Do(ctx, client, api.RepositoryRef{URL: url}); err != nil {
			return err
		}
		return a.did("the credential of %s is forgotten", url)
	})
}

func (a *app) showCredential(cmd *cobra.Command, url string) error {
	return a.ask(cmd, func(ctx context.Context, client *apiclient.Client) error {
		repository, err := findRepository(ctx, client, url)
		if err != nil {
			return err
		}
		builders, err := api.BuilderList.Do(ctx, client, api.None{})
		if err != nil {
			return err
		}
		return a.show(map[string]any{"url": url, "credential": repository.Credential}, func() {
			c := repository.Credential
			if c == nil {
				fmt.Fprintf(a.stdout, "%s has no credential\n", url)
				return
			}
			fmt.Fprintf(a.stdout, "%s of %s, given %s, sealed to the catalogue and to builders %s\n", c.Kind, url, ago(c.Given), orDash(strings.Join(c.Builders, ", ")))
			for _, b := range builders.Builders {
				if b.Key == "" {
					fmt.Fprintf(a.stderr, "the builder of %s has no key and cannot read it: mesh builder issue --node %s\n", b.Node, b.Node)
				}
			}
		})
	})
}

func findRepository(ctx context.Context, client *apiclient.Client, url string) (api.Repository, error) {
	list, err := api.RepositoryList.Do(ctx, client, api.None{})
	if err != nil {
		return api.Repository{}, err
	}
	for _, repository := range list.Repositories {
		if repository.URL == url {
			return repository, nil
		}
	}
	return api.Repository{}, &api.Error{Code: api.CodeNotFound, Message: "no repository " + url + " is watched", Remedy: "mesh repo ls lists those that are"}
}
