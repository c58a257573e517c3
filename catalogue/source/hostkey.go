package source

import (
	"bytes"
	"net"

	"golang.org/x/crypto/ssh"
)

// hostKeys are the server keys a connection may meet; every other ends it.
type hostKeys []ssh.PublicKey

func (k hostKeys) check(_ string, _ net.Addr, key ssh.PublicKey) error {
	for _, pinned := range k {
		if bytes.Equal(pinned.Marshal(), key.Marshal()) {
			return nil
		}
	}
	return errHostKey
}
