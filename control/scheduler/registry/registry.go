// Package registry is the table of the scheduler's plugins, in the order in which they run by default.
package registry

import (
	configv1 "k8s.io/kube-scheduler/config/v1"

	"github.com/berth-node/berth/control/scheduler/plugin/balancedallocation"
	"github.com/berth-node/berth/control/scheduler/plugin/defaultbinder"
	"github.com/berth-node/berth/control/scheduler/plugin/defaultpreemption"
	"github.com/berth-node/berth/control/scheduler/plugin/dynamicresources"
	"github.com/berth-node/berth/control/scheduler/plugin/gangscheduling"
	"github.com/berth-node/berth/control/scheduler/plugin/imagelocality"
	"github.com/berth-node/berth/control/scheduler/plugin/interpodaffinity"
	"github.com/berth-node/berth/control/scheduler/plugin/nodeaffinity"
	"github.com/berth-node/berth/control/scheduler/plugin/nodedeclaredfeatures"
	"github.com/berth-node/berth/control/scheduler/plugin/nodename"
	"github.com/berth-node/berth/control/scheduler/plugin/nodeports"
	"github.com/berth-node/berth/control/scheduler/plugin/noderesourcesfit"
	"github.com/berth-node/berth/control/scheduler/plugin/nodeunschedulable"
	"github.com/berth-node/berth/control/scheduler/plugin/nodevolumelimits"
	"github.com/berth-node/berth/control/scheduler/plugin/podtopologyspread"
	"github.com/berth-node/berth/control/scheduler/plugin/prioritysort"
	"github.com/berth-node/berth/control/scheduler/plugin/schedulinggates"
	"github.com/berth-node/berth/control/scheduler/plugin/tainttoleration"
	"github.com/berth-node/berth/control/scheduler/plugin/volumebinding"
	"github.com/berth-node/berth/control/scheduler/plugin/volumerestrictions"
	"github.com/berth-node/berth/control/scheduler/plugin/volumezone"
	"github.com/berth-node/berth/control/scheduler/profile"
)

// Row is one plugin. All of the table run by default, with this weight (0: none) among those that score.
type Row struct {
	Name   string
	Weight int32
	Make   profile.Factory
}

// Rows are all plugins. The order and weights are Kubernetes'.
func Rows() []Row {
	return []Row{
		{"SchedulingGates", 0, schedulinggates.New},
		{gangscheduling.Name, 0, gangscheduling.New},
		{"PrioritySort", 0, prioritysort.New},
		{"NodeUnschedulable", 0, nodeunschedulable.New},
		{"NodeName", 0, nodename.New},
		{"TaintToleration", 3, tainttoleration.New},
		{"NodeAffinity", 2, nodeaffinity.New},
		{"NodePorts", 0, nodeports.New},
		{"NodeResourcesFit", 1, noderesourcesfit.New},
		{volumerestrictions.Name, 0, volumerestrictions.New},
		{nodevolumelimits.Name, 0, nodevolumelimits.New},
		{volumebinding.Name, 0, volumebinding.New},
		{volumezone.Name, 0, volumezone.New},
		{"PodTopologySpread", 2, podtopologyspread.New},
		{"InterPodAffinity", 2, interpodaffinity.New},
		{"NodeDeclaredFeatures", 0, nodedeclaredfeatures.New},
		// Before the preemption: to free devices that nobody uses is better than to end a pod.
		{dynamicresources.Name, 2, dynamicresources.New},
		{defaultpreemption.Name, 0, defaultpreemption.New},
		{"NodeResourcesBalancedAllocation", 1, balancedallocation.New},
		{"ImageLocality", 1, imagelocality.New},
		{defaultbinder.Name, 0, defaultbinder.New},
	}
}

// Factories are how the plugins are made, by name.
func Factories() map[string]profile.Factory {
	all := map[string]profile.Factory{}
	for _, r := range Rows() {
		all[r.Name] = r.Make
	}
	return all
}

// Default are the plugins that a profile has which says nothing of them.
func Default() []configv1.Plugin {
	var all []configv1.Plugin
	for _, r := range Rows() {
		p := configv1.Plugin{Name: r.Name}
		if r.Weight != 0 {
			p.Weight = &r.Weight
		}
		all = append(all, p)
	}
	return all
}
