package node

import (
	"strings"

	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/component-helpers/nodedeclaredfeatures"
	featuretypes "k8s.io/component-helpers/nodedeclaredfeatures/types"
)

// Level is the release of Kubernetes whose kubelet the agent takes the place of: that of the libraries it speaks the
// API with.
const Level = "v1.37.2"

// Oldest is the oldest release of Kubernetes whose control planes the agent is a node of. Installers ask a kubelet for
// its release before there is a cluster, and refuse one that is newer than the control plane that they begin.
const Oldest = "v1.36.0"

// Version is what the Node has as kubelet's version. Whoever reads that decides by its numbers what the node can do
// and whether it fits the control plane, so they are Kubernetes'. Our own are behind a plus, where semantic versions
// have what does not count: behind a hyphen they would make it a preview that is older than its release.
func Version(release string) string {
	clean := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '-' {
			return r
		}
		return '-'
	}, strings.TrimPrefix(release, "v"))
	var parts []string
	for part := range strings.SplitSeq(clean, ".") {
		if part != "" {
			parts = append(parts, part)
		}
	}
	return Level + "+" + strings.Join(append([]string{"berth"}, parts...), ".")
}

// declared are the features that schedulers and admission must know of before they let a pod use them: those of the
// agent's that the runtime has, too.
func declared(f *Facts) []string {
	from := f.Runtime.Status.GetFeatures()
	level, err := version.ParseSemantic(f.Identity.Version)
	if err != nil {
		level = version.MustParseSemantic(Level)
	}
	return nodedeclaredfeatures.DefaultFramework.DiscoverNodeFeatures(&featuretypes.NodeConfiguration{
		FeatureGates: featuretypes.FeatureGateMap(f.Identity.Features), Version: level,
		RuntimeFeatures: featuretypes.RuntimeFeatures{
			UserNamespacesHostNetwork: from.GetUserNamespacesHostNetwork(), MountOptions: from.GetMountOptions(),
		},
	})
}
