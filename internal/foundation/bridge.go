package foundation

import "net"

// bridges are what Docker and Podman call the network containers are on by default.
var bridges = []string{"docker0", "podman0", "cni-podman0"}

// BridgeAddress is this machine's IPv4 address on a container engine's bridge, which
// containers and the machine itself both reach; false where there is none. It is the
// interface's own: an engine that has just made its bridge does not say the gateway until it
// has started a second time.
func BridgeAddress() (string, bool) {
	for _, name := range bridges {
		bridge, err := net.InterfaceByName(name)
		if err != nil {
			continue
		}
		addresses, err := bridge.Addrs()
		if err != nil {
			continue
		}
		for _, address := range addresses {
			if network, ok := address.(*net.IPNet); ok && network.IP.To4() != nil {
				return network.IP.String(), true
			}
		}
	}
	return "", false
}
