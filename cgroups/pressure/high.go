package pressure

import "github.com/berth-node/berth/cgroups/internal/kernfs"

// Unmark takes memory.high away from a v2 group, and says what it was; "": there was none. Older agents have used it
// for being told of usage, and left it behind when they were killed: it slows down whoever is above it, and nobody is
// told any more. Writing "max" waits for nothing.
func Unmark(group string) (was string, err error) {
	was, err = kernfs.ReadString(group + "/memory.high")
	if err != nil {
		return "", unsupported(group+"/memory.high", err)
	}
	if was == "max" {
		return "", nil
	}
	return was, kernfs.Write(group, "memory.high", "max")
}
