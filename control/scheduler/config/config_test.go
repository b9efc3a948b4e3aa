package config_test

import (
	"slices"
	"strings"
	"testing"

	configv1 "k8s.io/kube-scheduler/config/v1"

	"github.com/berth-node/berth/control/scheduler/config"
)

func defaults() []configv1.Plugin {
	weight := int32(2)
	return []configv1.Plugin{{Name: "A"}, {Name: "B", Weight: &weight}, {Name: "C"}}
}

const head = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"

// What is not said has Kubernetes' defaults; plugins that are named keep their place, others come last.
func TestRead(t *testing.T) {
	c, err := config.Read([]byte(head+`
leaderElection: {leaderElect: false}
clientConnection: {kubeconfig: /etc/k}
profiles:
- schedulerName: mine
  percentageOfNodesToScore: 70
  plugins:
    multiPoint:
      enabled: [{name: D}, {name: B, weight: 9}]
      disabled: [{name: A}]
    score:
      disabled: [{name: '*'}]
  pluginConfig:
  - name: NodeResourcesFit
    args: {scoringStrategy: {type: MostAllocated}}
  - name: Foreign
    args: {any: thing}
`), defaults())
	if err != nil {
		t.Fatal(err)
	}
	if c.Parallelism != 16 || c.FirstBackoff.Seconds() != 1 || c.LastBackoff.Seconds() != 10 || len(c.Profiles) != 1 {
		t.Errorf("it is %+v", c)
	}
	p := c.Profiles[0]
	var names []string
	for _, e := range p.Plugins.MultiPoint.Enabled {
		names = append(names, e.Name)
	}
	if want := []string{"B", "C", "D"}; !slices.Equal(names, want) || *p.Plugins.MultiPoint.Enabled[0].Weight != 9 {
		t.Errorf("plugins %v, want %v", names, want)
	}
	if _, ok := p.Args["NodeResourcesFit"].(*configv1.NodeResourcesFitArgs); !ok || p.Args["Foreign"] == nil || p.PercentageOfNodes != 70 {
		t.Errorf("the profile is %+v", p)
	}
}

// An error names the field.
func TestRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"parallelism: 0":                                                        "parallelism",
		"percentageOfNodesToScore: 101":                                         "percentageOfNodesToScore",
		"podInitialBackoffSeconds: 20":                                          "podMaxBackoffSeconds",
		"profile: []":                                                           `unknown field "profile"`,
		"profiles: [{}, {}]":                                                    "profiles[0].schedulerName",
		"profiles: [{schedulerName: a, plugins: {x: {}}}]":                      `unknown field "profiles[0].plugins.x"`,
		"profiles: [{schedulerName: a}, {schedulerName: a}]":                    "profiles[1].schedulerName",
		"profiles: [{pluginConfig: [{name: NodeAffinity, args: {x: 1}}]}]":      `unknown field "x"`,
		"extenders: [{urlPrefix: '', prioritizeVerb: p}]":                       "extenders[0].urlPrefix",
		"extenders: [{urlPrefix: a, prioritizeVerb: p}]":                        "extenders[0].weight",
		"extenders: [{urlPrefix: a, bindVerb: b}, {urlPrefix: c, bindVerb: b}]": "only one",
		"extenders: [{urlPrefix: a, managedResources: [{name: cpu}]}]":          "extenders[0].managedResources[0].name",
	} {
		if _, err := config.Read([]byte(head+text), defaults()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want one with %s", text, err, want)
		}
	}
	if _, err := config.Read([]byte("apiVersion: v1\nkind: Pod\n"), defaults()); err == nil {
		t.Error("a pod is a configuration")
	}
}
