package config

import (
	"github.com/spf13/pflag"

	"github.com/berth-node/berth/eviction/collect"
)

// addDeadFlags adds the flags that say which dead containers are kept, to fs.
func addDeadFlags(p *collect.Policy, fs *pflag.FlagSet) {
	fs.DurationVar(&p.MinAge, "minimum-container-ttl-duration", p.MinAge, "how long ago a container has ended at least that is removed while its pod is there")
	fs.IntVar(&p.MaxPerContainer, "maximum-dead-containers-per-container", p.MaxPerContainer, "how many of those that have ended are kept of each container, beside the latest (-1: any number)")
	fs.IntVar(&p.MaxTotal, "maximum-dead-containers", p.MaxTotal, "how many of those are kept of all pods together (-1: any number)")
}
