// Package early answers what needs nothing of the program: "berth version" is asked by scripts and by upgrades, and the
// packages of the program take twenty times as long to be initialized as a Go program takes to start. Go initializes of
// the packages that can be the first by its path, and all that this one wants is there before nearly all others.
package early

import (
	"os"
	"runtime/debug"
	"strings"
)

// gcPercent is for the start: what the packages of the program allocate lives on, and is nearly as much as Go collects
// at first, so that each command would begin with a collection that finds nothing. Who lives long says how often to
// collect.
const gcPercent = 200

// version is set by the build, as main's is. Without it the question is left to main.
var version string

func init() {
	if line, ok := answer(os.Args); ok {
		if _, err := os.Stdout.WriteString(line); err != nil {
			_, _ = os.Stderr.WriteString("berth: " + err.Error() + "\n") // there is nobody else to tell
			os.Exit(1)
		}
		os.Exit(0)
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
}

// answer is what is printed for a command line; false: main has to see to it.
func answer(args []string) (string, bool) {
	if version == "" || len(args) != 2 || args[1] != "version" {
		return "", false
	}
	// By another name it is a plugin of the network, or a kubelet.
	name := args[0][strings.LastIndexByte(args[0], '/')+1:]
	return "berth " + version + "\n", name == "berth"
}
