# make help lists what there is to do.
GO      ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
# The node of `make run` has directories, a cgroup root, a bridge and addresses of its own.
RUN     ?= run
# How long each fuzz target of `make fuzz` runs.
FUZZTIME ?= 30s
GOLANGCI := bin/tools/golangci-lint
GOLANGCI_VERSION := v2.15.0

LDFLAGS := -s -w -X main.version=$(VERSION) -X github.com/berth-node/berth/internal/early.version=$(VERSION)

# The API is that of this Kubernetes: clients and the code of custom resources ask for it.
KUBE_VERSION := 1.37.2
KUBE_LDFLAGS := $(foreach p,k8s.io/component-base/version k8s.io/client-go/pkg/version, -X $(p).gitVersion=v$(KUBE_VERSION) \
	-X $(p).gitMajor=1 -X $(p).gitMinor=37 -X $(p).gitTreeState=clean)

# Clients and generated code that runs seldom is not inlined: three hundredths of the program.
CONTROL_GCFLAGS := $(foreach p,github.com/google/gnostic-models github.com/google/cel-go/parser \
	$(addprefix k8s.io/,client-go/applyconfigurations client-go/kubernetes client-go/informers client-go/listers \
	kube-aggregator/pkg/client kube-aggregator/pkg/generated apiextensions-apiserver/pkg/client apiextensions-apiserver/pkg/generated), \
	-gcflags=$(p)/...=-l)

# Where several goroutines of one process meet. The other packages mostly execute programs, which race detection does not see into.
# The longest come first.
RACE := ./csi/... ./internal/redo ./eviction $(addprefix ./agent/,api/... cluster credential desired device dra drift event/... expand \
	intercept kills metrics node object pinning plugin pod/... podcert pulled record rotate shutdown source/... stats status/... token volume/...) \
	./cgroups/... ./cni ./control/... ./eviction/... ./install/... ./internal/... ./probes ./systemd \
	$(addprefix ./cri/,image image/registry nri remote serve snapshot store stream)

.PHONY: help build control control-flags build-test deps run clean-node run-cluster clean-cluster test ci test-rest race sanitize test-long test-vm test-vm-short test-vm-arm64 test-v2 csi-sanity csi-powercut csi-vm csi-thirdparty kubectl-compare test-kubernetes test-kubeadm test-ecosystem control-conformance control-kills control-powercut control-bench rules-peer package govulncheck licences lint bench bench-cluster fuzz fmt clean

help: ## this list
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' Makefile | sort | awk -F'\t' '{printf "make %-12s %s\n", $$1, $$2}'

build: ## bin/berth, bin/berth-helper, bin/berth-wasm and bin/berth-control
	@.ci/deps build
	@# Without gRPC's traces, which nobody asks for, the linker finds what is not used: a seventh of the program.
	CGO_ENABLED=0 $(GO) build -trimpath -tags grpcnotrace -ldflags '$(LDFLAGS)' -o bin/berth .
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w' -o bin/berth-wasm ./cri/wasm
	CGO_ENABLED=1 $(GO) build -trimpath -tags seccomp,osusergo,netgo -ldflags '$(LDFLAGS)' -o bin/berth-helper ./cri/helper
	$(MAKE) control

control: bin/trim/go.mod ## bin/berth-control
	CGO_ENABLED=0 $(GO) build -modfile bin/trim/go.mod -trimpath -tags grpcnotrace $(CONTROL_GCFLAGS) -ldflags '$(LDFLAGS) $(KUBE_LDFLAGS)' -o bin/berth-control ./control/berth-control

bin/trim/go.mod: go.mod go.sum packaging/trim
	GO=$(GO) packaging/trim

# What packaging/build builds it with, too: what the compiler is told, and what the linker is, a line each.
control-flags:
	@echo '$(CONTROL_GCFLAGS)'
	@echo '$(KUBE_LDFLAGS)'

bin/example/hello.tar: $(wildcard examples/hello/*.go) test/mkimage/main.go examples/hello/image
	@.ci/deps run
	examples/hello/image $@

run: build bin/example/hello.tar ## a node with an example pod, in the foreground, on directories under ./run
	@examples/hello/run $(RUN)

run-cluster: build bin/example/hello.tar ## a control plane and a node that joins it, in the foreground, on directories under ./run-cluster
	@examples/cluster/run $(RUN)-cluster

clean-cluster: bin/berth ## remove the cluster of make run-cluster
	@examples/cluster/clean $(RUN)-cluster

bin/berth:
	@$(MAKE) build

clean-node: bin/berth ## remove the node of make run with its pods
	@examples/hello/clean $(RUN)

build-test: build ## what the system tests run
	@.ci/deps test
	@mkdir -p bin/test
	test/busybox.sh bin/test/busybox.tar
	$(CC) -static -Os -o bin/test/pause test/fixtures/pause.c
	$(CC) -static -O2 -o bin/test/peep test/fixtures/peep.c
	$(CC) -static -O2 -o bin/test/reveal test/fixtures/reveal.c
	$(CC) -static -O2 -o bin/test/eat test/fixtures/eat.c
	$(CC) -static -O2 -o bin/test/cost test/fixtures/cost.c
	$(CC) -static -O2 -o bin/test/floor test/fixtures/floor.c
	CGO_ENABLED=0 $(GO) run -trimpath ./test/mkimage -o bin/test/pause.tar -name berth.test/pause:1 -entrypoint /pause /pause=bin/test/pause
	CGO_ENABLED=0 $(GO) run -trimpath ./test/mkimage -o bin/test/berth-control.tar -name berth.test/berth-control:1 -entrypoint /berth-control /berth-control=bin/berth-control
	test/wasm.sh bin/test/wasm.tar
	CGO_ENABLED=0 $(GO) build -trimpath -tags grpcnotrace -ldflags '-s -w' -o bin/test/csidriver ./test/fixtures/csidriver

# Tests are compiled as berth-control is, so that what both are made of is compiled once: two packages out of five. Only the
# helper has C in it.
TEST_FLAGS := -vet=off -trimpath -tags grpcnotrace $(CONTROL_GCFLAGS)
# The longest come first. Tests wait as often as they compute, so that there is one package more than processors.
GO_TEST := CGO_ENABLED=0 $(GO) test $(TEST_FLAGS) -p 3 -timeout 45m ./test/system ./test/control ./cri
TEST_HELPER := CGO_ENABLED=1 $(GO) test -vet=off -trimpath -tags seccomp,osusergo,netgo ./cri/helper

test: build-test ## every test; as root also those on the real kernel
	@# go vet is a part of lint, and would look at each package again.
	$(GO_TEST) $$($(GO) list ./... | grep -v '/cri/helper$$')
	$(TEST_HELPER)
	CGO_ENABLED=0 $(GO) test -C packaging -trimpath .

ci: build-test lint race sanitize test-rest ## lint, and every test once: where several goroutines meet, with the race detector

test-rest: build-test ## those tests that race does not run
	$(GO_TEST) $$(.ci/rest $(RACE) | grep -v '/cri/helper$$')
	$(TEST_HELPER)
	CGO_ENABLED=0 $(GO) test -C packaging -trimpath .

test-long: build-test ## tests at their full length: more kills, every field with another runtime, the CRI's suite over containerd
	BERTH_TEST_LONG=1 CGO_ENABLED=0 $(GO) test $(TEST_FLAGS) -count=1 -timeout 90m ./test/system ./test/control ./test/conformance

# Releases that the machine goes from and to; without a previous one at hand both are this tree under two versions.
VM_OLD ?= bin/vm/old/berth_0.0.1_amd64.deb
VM_NEW ?= bin/vm/new/berth_0.0.2_amd64.deb
VM_CUTS ?= 10

test-vm: ## the package on a virtual machine: installed, rebooted, power cut, upgraded, disk filled, removed
	@.ci/deps build vm
	[ -e $(VM_OLD) ] || PROGRAMS=berth ARCHES=amd64 FORMATS=deb GO='$(GO)' VERSION=v0.0.1 packaging/build $(dir $(VM_OLD))
	PROGRAMS=berth ARCHES=amd64 FORMATS=deb GO='$(GO)' VERSION=v0.0.2 packaging/build bin/vm/new
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/vm/guest ./test/vm/guest
	image=$$(test/vm/image) && VM_IMAGE=$$image VM_OLD=$(abspath $(VM_OLD)) VM_NEW=$(abspath $(VM_NEW)) VM_GUEST=$(CURDIR)/bin/vm/guest \
		VM_CUTS=$(VM_CUTS) $(GO) test -count=1 -timeout 180m -v -run 'TestMachine|TestTarball' ./test/vm

test-vm-short: ## the package on a virtual machine: installed, a pod asked from outside, removed without a trace
	@.ci/deps build vm
	PROGRAMS=berth ARCHES=amd64 FORMATS=deb GO='$(GO)' VERSION=v0.0.2 packaging/build bin/vm/new
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/vm/guest ./test/vm/guest
	image=$$(test/vm/image) && VM_IMAGE=$$image VM_NEW=$(abspath $(VM_NEW)) VM_GUEST=$(CURDIR)/bin/vm/guest \
		$(GO) test -count=1 -timeout 30m -v -run TestShort ./test/vm

VM_ARM64 := bin/vm/arm64/berth_0.0.2_arm64.deb

test-vm-arm64: ## the package for arm64 on a machine with such a processor: installed, a pod asked from outside, removed
	@.ci/deps build package vm-arm64
	PROGRAMS=berth ARCHES=arm64 FORMATS=deb GO='$(GO)' VERSION=v0.0.2 packaging/build $(dir $(VM_ARM64))
	CGO_ENABLED=0 GOARCH=arm64 $(GO) build -trimpath -o bin/vm/arm64/guest ./test/vm/guest
	image=$$(VM_ARCH=arm64 test/vm/image) && VM_ARCH=arm64 VM_IMAGE=$$image VM_NEW=$(abspath $(VM_ARM64)) \
		VM_GUEST=$(CURDIR)/bin/vm/arm64/guest $(GO) test -count=1 -timeout 90m -v -run TestShort ./test/vm

# What the tests of test/system call beside the packages of every such machine.
V2_PACKAGES := containerd containernetworking-plugins crun cryptsetup-bin iptables iputils-ping libseccomp2 lvm2 psmisc runc strace \
	thin-provisioning-tools uidmap
V2_DRIVER   ?= cgroupfs
V2_TESTS    ?=

test-v2: build-test ## tests of what cgroup v2 does otherwise, each on a virtual machine; V2_TESTS are some, V2_DRIVER may be systemd
	@.ci/deps vm
	$(GO) test -c -tags seccomp -o bin/test/system.test ./test/system
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/vm/guest ./test/vm/guest
	image=$$(VM_PACKAGES='$(V2_PACKAGES)' test/vm/image) && VM_IMAGE=$$image VM_GUEST=$(CURDIR)/bin/vm/guest VM_SYSTEM=$(CURDIR)/bin \
		VM_TESTS='$(V2_TESTS)' VM_DRIVER=$(V2_DRIVER) $(GO) test -count=1 -timeout 240m -v -run TestSystem ./test/vm

race: ## the tests of what is concurrent, with the race detector
	@.ci/deps build test
	@# Whoever has the race detector in him and several threads sleeps a second before he ends, for races that others still report. The
	@# tests that kill a process at each of its steps start hundreds, and a report that is begun is waited for anyway.
	CGO_ENABLED=1 GORACE=atexit_sleep_ms=10 $(GO) test -vet=off -race -short -p 3 -tags seccomp -timeout 30m $(RACE)

sanitize: ## the keeper's tests with a helper that has AddressSanitizer and UBSan in it
	@.ci/deps test
	@mkdir -p bin/test
	CGO_ENABLED=1 $(GO) build -asan -trimpath -tags seccomp,osusergo,netgo -o bin/test/berth-helper-sanitized ./cri/helper
	@# Not those that have a container look through the memory it sees: a sanitizer's is terabytes, and has what the keeper's has.
	BERTH_HELPER=$(CURDIR)/bin/test/berth-helper-sanitized \
		CGO_ENABLED=0 $(GO) test $(TEST_FLAGS) -count=1 -timeout 20m -skip TestContainerSeesNo ./cri/keeper

package: ## Debian packages, RPMs and tarballs for amd64 and arm64 in dist/, the same bytes wherever they are made
	@.ci/deps build package
	GO='$(GO)' VERSION='$(VERSION)' packaging/build dist

csi-sanity: ## the sanity suite of Kubernetes' CSI project on the built-in driver, mount and block
	CGO_ENABLED=0 $(GO) build -trimpath -tags grpcnotrace -ldflags '$(LDFLAGS)' -o bin/berth .
	cd test/sanity && $(GO) test -count=1 -timeout 30m -v -run TestSanity .

csi-thirdparty: build-test ## a CSI driver that others have written, with its own registrar, and the agent
	cd test/thirdparty && CGO_ENABLED=0 $(GO) build -trimpath -o $(CURDIR)/bin/test/thirdparty .
	BERTH_THIRD_PARTY=$(CURDIR)/bin/test/thirdparty CGO_ENABLED=0 $(GO) test $(TEST_FLAGS) -count=1 -timeout 20m -v -run TestThirdPartyDriver ./test/system

kubectl-compare: control ## kubectl with berth-control and with Kubernetes' own API server, each answer compared; -update by COMPARE
	test/cluster/build bin/cluster kubectl kube-apiserver etcd
	BERTH_KUBECTL=$(CURDIR)/bin/cluster/kubectl BERTH_KUBE_APISERVER=$(CURDIR)/bin/cluster/kube-apiserver BERTH_ETCD=$(CURDIR)/bin/cluster/etcd \
		BERTH_CONTROL=$(CURDIR)/bin/berth-control $(GO) test -count=1 -timeout 20m -v ./test/kubectl $(COMPARE)

# What runs around berth-control and beside it, built of published modules.
PEERS := kubectl kube-apiserver etcd kube-controller-manager kube-scheduler kube-proxy kubelet e2e.test ginkgo agnhost sample-apiserver coredns

control-conformance: build ## Kubernetes' conformance specs of its API against berth-control, in an otherwise real cluster; FOCUS are some
	@.ci/deps test cluster
	test/cluster/build bin/cluster $(PEERS)
	test/cluster/conformance bin bin/cluster $(FOCUS)

NODE_FOCUS ?= \[sig-node\].*\[Conformance\]
PLANE      ?= kubernetes
NODES      ?= 1

test-kubernetes: build ## Kubernetes' conformance specs of nodes, with the agent as the node under Kubernetes' own API server; NODE_FOCUS, PLANE, NODES
	@.ci/deps test cluster
	test/cluster/build bin/cluster $(PEERS)
	NODE=berth NODES=$(NODES) PLANE=$(PLANE) test/cluster/conformance bin bin/cluster '$(NODE_FOCUS)'

test-kubeadm: build ## Kubernetes' own kubeadm: init and join of two nodes on this machine, with the agent as kubelet
	@.ci/deps test cluster
	test/cluster/build bin/cluster kubeadm kubectl etcd kube-apiserver kube-controller-manager kube-scheduler kube-proxy coredns agnhost
	test/cluster/kubeadm bin bin/cluster

test-ecosystem: build-test ## what people run in clusters, as published: CSI sidecars, Helm with a chart, an operator with its own
	test/cluster/build bin/ecosystem ecosystem-kubectl helm kueue csi-provisioner csi-attacher csi-resizer csi-snapshotter snapshot-controller csi-manifests
	BERTH_PEERS=$(CURDIR)/bin/ecosystem CGO_ENABLED=0 $(GO) test $(TEST_FLAGS) -count=1 -timeout 30m -v -run 'TestSidecars$$|TestHelm$$|TestOperator$$' ./test/system

control-kills: control ## berth-control killed 200 times under writes, and each object's history checked
	BERTH_CONTROL_KILLS=200 CGO_ENABLED=0 $(GO) test $(TEST_FLAGS) -count=1 -timeout 60m -v -run TestKills ./test/control

control-powercut: control ## the same in a virtual machine whose power is cut
	@.ci/deps vm
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/vm/guest ./test/vm/guest
	image=$$(test/vm/image) && VM_IMAGE=$$image VM_CONTROL=$(CURDIR)/bin/berth-control VM_GUEST=$(CURDIR)/bin/vm/guest \
		VM_CUTS=$(VM_CUTS) $(GO) test -count=1 -timeout 120m -v -run 'TestPlane$$' ./test/vm

control-bench: control ## berth-control beside Kubernetes' own API server and etcd, as ratios
	test/cluster/build bin/cluster kube-apiserver etcd
	$(GO) run ./test/bench/control

rules-peer: ## defaults and rules of the API beside those of Kubernetes, whose own are built; RULES_ROUNDS changes a sample
	cd test/rules/peer && $(GO) build -p 1 -o $(CURDIR)/bin/test/rules-peer .
	BERTH_RULES_PEER=$(CURDIR)/bin/test/rules-peer BERTH_RULES_ROUNDS=$(RULES_ROUNDS) $(GO) test -count=1 -timeout 30m -v -run TestPeer ./test/rules

RULES_ROUNDS ?= 400

csi-powercut: ## the built-in driver in a virtual machine whose power is cut in the middle of stage, expand and snapshot
	CGO_ENABLED=0 $(GO) build -trimpath -tags grpcnotrace -ldflags '$(LDFLAGS)' -o bin/berth .
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/test/powercut ./test/powercut
	@.ci/deps vm
	image=$$(test/vm/image) && POWERCUT_IMAGE=$$image POWERCUT_BERTH=$(CURDIR)/bin/berth \
		POWERCUT_GUEST=$(CURDIR)/bin/test/powercut $(GO) test -count=1 -timeout 60m -v ./test/powercut

csi-vm: build-test ## encrypted and logical volumes on a virtual machine, whose kernel has a device mapper; VM_STORAGE are some steps
	@.ci/deps vm
	$(GO) test -c -tags seccomp -o bin/test/system.test ./test/system
	$(GO) test -c -o bin/test/local.test ./csi/local
	cd test/sanity && $(GO) test -c -o $(CURDIR)/bin/test/sanity.test .
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/vm/guest ./test/vm/guest
	image=$$(VM_PACKAGES='$(V2_PACKAGES)' test/vm/image) && VM_IMAGE=$$image VM_GUEST=$(CURDIR)/bin/vm/guest VM_SYSTEM=$(CURDIR)/bin \
		VM_STORAGE='$(VM_STORAGE)' VM_DRIVER=$(V2_DRIVER) $(GO) test -count=1 -timeout 240m -v -run TestStorage ./test/vm

GOVULNCHECK_VERSION := v1.1.4

govulncheck: ## known vulnerabilities in what is called; fails, and says so, where the tool or the database cannot be reached
	GO='$(GO)' .ci/govulncheck bin/tools/govulncheck $(GOVULNCHECK_VERSION)

licences: ## the licences of all that is linked; fails for one that is not known
	$(GO) run ./test/licences

lint: $(GOLANGCI) ## gofumpt and the linters
	@.ci/deps build
	@# What packages import has to be compiled for them to be looked at: as for tests, so that it is not done once more.
	CGO_ENABLED=0 GOFLAGS="$$($(GO) env GOFLAGS) -trimpath $(CONTROL_GCFLAGS)" $(GOLANGCI) run --allow-parallel-runners --build-tags grpcnotrace \
		$$($(GO) list -f '{{.Dir}}' ./... | grep -v '/cri/helper$$')
	CGO_ENABLED=1 GOFLAGS="$$($(GO) env GOFLAGS) -trimpath" $(GOLANGCI) run --allow-parallel-runners --build-tags seccomp,osusergo,netgo ./cri/helper

$(GOLANGCI): Makefile
	GOBIN=$(CURDIR)/bin/tools $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION)

fmt: $(GOLANGCI) ## format
	$(GOLANGCI) fmt ./...

bench: build-test ## berth beside containerd and podman, as ratios
	@.ci/deps bench
	$(GO) run ./test/bench

bench-cluster: build-test ## the agent beside Kubernetes' kubelet with containerd, under one API server, as ratios
	@.ci/deps bench
	test/cluster/build bin/cluster kubelet
	$(GO) run ./test/bench/cluster

fuzz: ## every fuzz target for FUZZTIME
	.ci/fuzz $(FUZZTIME)

deps: ## Debian packages for all of this
	.ci/deps build run test bench

clean: ## remove what was built
	rm -rf bin dist
