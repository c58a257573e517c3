package bus

import (
	"fmt"
	"regexp"
	"strings"
)

// Account is a user of the broker with everything it may do. The patterns are regular
// expressions over names of exchanges and queues; "^$" is nothing.
type Account struct {
	Name      string
	Password  string
	Tags      string // of the management API; "" is no access to it
	Configure string // declare and delete
	Write     string // publish to an exchange, bind a queue
	Read      string // consume, get and purge a queue, bind an exchange
	Topics    []TopicPermission
}

// TopicPermission narrows an account to keys of one topic exchange.
type TopicPermission struct {
	Exchange string
	Write    string
	Read     string
}

// Prefixes of account names, before the node's name.
const (
	builderPrefix = "builder."
	nodePrefix    = "node."
)

// ControllerName is the controller's account.
const ControllerName = "controller"

// BuilderName is the account of the builder on a node.
func BuilderName(node string) string { return builderPrefix + node }

// NodeName is the account of a node's host.
func NodeName(node string) string { return nodePrefix + node }

// BuilderAccount reads build requests and says what became of them, and nothing else.
func BuilderAccount(node, password string) Account {
	return Account{
		Name: BuilderName(node), Password: password,
		Configure: "^$", Write: "^" + Answers + "$", Read: "^" + Builds + "$",
		Topics: answersOnly(`^build\.(result|progress\..+)$`),
	}
}

// NodeAccount reads what is meant for the node and reports of it, and nothing else.
func NodeAccount(node, password string) Account {
	name := regexp.QuoteMeta(node)
	return Account{
		Name: NodeName(node), Password: password,
		Configure: "^$", Write: "^" + Answers + "$", Read: `^node\.` + name + `\.(declare|command)$`,
		Topics: answersOnly(`^report\.` + name + `(\..+)?$`),
	}
}

func answersOnly(write string) []TopicPermission {
	return []TopicPermission{
		{Exchange: Answers, Write: write, Read: "^$"},
		{Exchange: Orders, Write: "^$", Read: "^$"},
	}
}

// ControllerAccount has all of the mesh's exchanges and queues, the default exchange and
// other people's queues left out, and makes the other accounts through the management API.
func ControllerAccount(password string) Account {
	ours := `^(mesh|mesh\.orders|builds|builds\.dead|builds\.cancelled|build-results|reports|node\..+|reply\..+)$`
	return Account{
		Name: ControllerName, Password: password, Tags: "administrator",
		Configure: ours, Write: ours, Read: ours,
	}
}

// A ForgedError is a message whose sender is not who its key speaks of. It is refused and
// recorded.
type ForgedError struct {
	User string // who sent it; "" when it does not say
	Key  string
	Want string
}

func (e *ForgedError) Error() string {
	return fmt.Sprintf("message %q comes from %q, and only %s may send it", e.Key, e.User, e.Want)
}

// Builder is the node whose builder sent a result or progress. A *ForgedError when the key
// is neither, or no builder sent it.
func (d Delivery) Builder() (node string, err error) {
	node, ok := strings.CutPrefix(d.UserID, builderPrefix)
	if !ok || node == "" || !d.isBuildAnswer() {
		return "", &ForgedError{User: d.UserID, Key: d.Key, Want: "a builder"}
	}
	return node, nil
}

func (d Delivery) isBuildAnswer() bool {
	return d.Exchange == Answers && (d.Key == KeyBuildResult || d.Key == KeyBuildProgress(d.CorrelationID))
}

// Reporter is the node that sent a report, and what of: "" for report.<node>, "x" for
// report.<node>.x. A *ForgedError when another than that node sent it.
func (d Delivery) Reporter() (node, topic string, err error) {
	rest, ok := strings.CutPrefix(d.Key, "report.")
	node, topic, _ = strings.Cut(rest, ".")
	if !ok || node == "" || d.Exchange != Answers {
		return "", "", &ForgedError{User: d.UserID, Key: d.Key, Want: "nobody"}
	}
	if d.UserID != NodeName(node) {
		return "", "", &ForgedError{User: d.UserID, Key: d.Key, Want: NodeName(node)}
	}
	return node, topic, nil
}
