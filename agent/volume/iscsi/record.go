package iscsi

// diskRecord is a disk of a target, and what it may have left on the node. Those with the same target and interface
// have a session together, which ends with the last of them.
type diskRecord struct {
	IQN     string
	LUN     int32
	Iface   string   // the interface record that its session is made with: it is ours alone
	Portals []string // in the order in which they are tried
	// Discovered are the portals for which there are discovery records of ours.
	Discovered []string `json:",omitempty"`
}
