package agent

import (
	"path/filepath"

	"github.com/berth-node/berth/agent/config"
	"github.com/berth-node/berth/agent/kills"
)

// Stores are the files, and the directories of files, that a version of the agent writes its own way: what is copied
// before another version starts. Those of the boot's own pods (pods/UID) are not among them, since their pods write
// them again.
func Stores(p config.Place) []string {
	out := below(p.RootDir, "manifests", pulledDir, runtimesFile, eventsFile, devicesFile, claimsFile, pinsFile, reservedFile, kills.File,
		evictionsFile, conditionsFile, provisionDir, csiDir)
	return append(out, filepath.Join(p.RootDir, localDir, "records"))
}
