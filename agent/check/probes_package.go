package check

import (
	"context"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/berth-node/berth/internal/command"
)

// packaged is the program of a package, and packagerPatience how long a packager may take to compare tens of megabytes.
const (
	packaged         = "/usr/bin/berth"
	packagerPatience = time.Minute
)

// packageProbes look at what a packager has installed.
func packageProbes() []probe {
	return []probe{{
		"package", false, "What runs is not what dpkg or rpm say: an upgrade of theirs goes on from another version than this one, and units may not " +
			"fit the program.", probePackage,
	}, {
		"upgrade", false, "Some files may be of one version and some of the other, and the agent that was stopped for them stays stopped until the next boot.",
		probeUpgrade,
	}}
}

// Upgrade finds an upgrade of this machine's berth that was cut off, and nobody goes on with; "" as what when there is
// none.
type Upgrade func() (what string, err error)

func probeUpgrade(_ context.Context, e *env) answer {
	if e.upgrade == nil {
		return ok("not looked for")
	}
	what, err := e.upgrade()
	switch {
	case err != nil:
		return limited("%v", err)
	case what != "":
		return limited("%s", what)
	}
	return ok("none was cut off")
}

// probePackage finds files that are not those of the package, as after the way back from an upgrade of rpm's.
func probePackage(ctx context.Context, _ *env) answer {
	if _, err := os.Stat(packaged); err != nil {
		return ok("none has installed berth")
	}
	for _, p := range []struct{ version, verify []string }{
		{[]string{"dpkg-query", "--show", "--showformat", "${Version}", "berth"}, []string{"dpkg", "--verify", "berth"}},
		{[]string{"rpm", "--query", "--queryformat", "%{VERSION}", "berth"}, []string{"rpm", "--verify", "--nodeps", "berth"}},
	} {
		version, err := command.Call{Name: p.version[0], Args: p.version[1:], Deadline: packagerPatience}.Run(ctx)
		if err != nil {
			continue
		}
		// It fails when it has found something, and says the same.
		found, _ := command.Call{Name: p.verify[0], Args: p.verify[1:], Deadline: packagerPatience}.Run(ctx)
		if all := altered(found.Out); len(all) > 0 {
			return limited("%s has version %s installed, and other files are there: %s", p.verify[0], version.Out, strings.Join(all, ", "))
		}
		return ok("%s %s", p.verify[0], version.Out)
	}
	return ok("none has installed berth")
}

// altered are the files whose content is another one, of what dpkg and rpm say of a package: a line each, with a 5 in
// the third place when the digest differs.
func altered(said string) []string {
	var out []string
	for line := range strings.Lines(said) {
		words := strings.Fields(line)
		if len(words) >= 2 && len(words[0]) >= 9 && words[0][2] == '5' {
			out = append(out, words[len(words)-1])
		}
	}
	slices.Sort(out)
	return out
}
