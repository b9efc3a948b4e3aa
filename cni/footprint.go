package cni

// The names of what the built-in network makes on the machine, beside its bridge.
const (
	// LinkPrefix is what the names of the node's ends of veth pairs begin with.
	LinkPrefix = "bth"
	// Forwarding is the setting of the kernel that it makes, by its path below /proc/sys.
	Forwarding = "net/ipv4/ip_forward"
)

// TableName is the name of a bridge's two tables of nftables: of the family ip for its addresses and ports, of the
// family bridge for its filter.
func TableName(bridge string) string { return "berth-" + bridge }
