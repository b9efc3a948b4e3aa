package verticalautoscaler

import (
	"context"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/autoscaler/vertical-pod-autoscaler/pkg/recommender/checkpoint"
	"k8s.io/autoscaler/vertical-pod-autoscaler/pkg/recommender/config"
	"k8s.io/autoscaler/vertical-pod-autoscaler/pkg/recommender/input"
	"k8s.io/autoscaler/vertical-pod-autoscaler/pkg/recommender/input/metrics"
	"k8s.io/autoscaler/vertical-pod-autoscaler/pkg/recommender/logic"
	clusterstate "k8s.io/autoscaler/vertical-pod-autoscaler/pkg/recommender/model"
	"k8s.io/autoscaler/vertical-pod-autoscaler/pkg/recommender/routines"
	"k8s.io/client-go/rest"
	"k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

// model is what is known of the pods' use, with all of the past that counts.
type model struct{ routines.Recommender }

// newModel begins with what checkpoints have of autoscalers, in the place of their first days.
func (a *autoscaler) newModel(ctx context.Context) *model {
	c := config.DefaultRecommenderConfig()
	state := clusterstate.NewClusterState(c.CheckpointsGCInterval)
	feeder := input.ClusterStateFeederFactory{
		ClusterState: state, KubeClient: a.deps.Client, PodLister: a.deps.Pods.Lister(), OOMObserver: a.kills,
		MetricsClient:       metrics.NewMetricsClient(usage{a.deps.Client.Discovery().RESTClient()}, metav1.NamespaceAll, "berth-control"),
		VpaCheckpointClient: a.custom.AutoscalingV1(), VpaCheckpointLister: a.checkpoints, VpaLister: a.scalers,
		SelectorFetcher: a.owners.selectors, ControllerFetcher: a.owners.controllers,
		RecommenderName: input.DefaultRecommenderName, MemorySaveMode: true, // pods of no autoscaler are not remembered
	}.Make()
	feeder.InitFromCheckpoints(ctx)
	return &model{routines.RecommenderFactory{
		ClusterState: state, ClusterStateFeeder: feeder, ControllerFetcher: a.owners.controllers,
		CheckpointWriter: checkpoint.NewCheckpointWriter(state, a.custom.AutoscalingV1()), VpaClient: a.custom.AutoscalingV1(),
		PodResourceRecommender: logic.CreatePodResourceRecommender(logic.RecommendationConfig{
			SafetyMarginFraction: c.SafetyMarginFraction, PodMinCPUMillicores: c.PodMinCPUMillicores, PodMinMemoryMb: c.PodMinMemoryMb,
			TargetCPUPercentile: c.TargetCPUPercentile, LowerBoundCPUPercentile: c.LowerBoundCPUPercentile,
			UpperBoundCPUPercentile: c.UpperBoundCPUPercentile, ConfidenceIntervalCPU: c.ConfidenceIntervalCPU,
			TargetMemoryPercentile: c.TargetMemoryPercentile, LowerBoundMemoryPercentile: c.LowerBoundMemoryPercentile,
			UpperBoundMemoryPercentile: c.UpperBoundMemoryPercentile, ConfidenceIntervalMemory: c.ConfidenceIntervalMemory,
		}),
		RecommendationFormat:         logic.RecommendationFormat{RoundCPUMillicores: c.RoundCPUMillicores, RoundMemoryBytes: c.RoundMemoryBytes},
		RecommendationPostProcessors: []routines.RecommendationPostProcessor{routines.NewCappingRecommendationProcessor(nil)},
		CheckpointsGCInterval:        c.CheckpointsGCInterval, CheckpointsWriteTimeout: c.CheckpointsWriteTimeout,
		UseCheckpoints: true, UpdateWorkerCount: 1,
	}.Make()}
}

// usage asks the API of metrics, whoever serves it.
type usage struct{ client rest.Interface }

// List implements the libraries' source of metrics.
func (u usage) List(ctx context.Context, namespace string, o metav1.ListOptions) (*v1beta1.PodMetricsList, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	path := []string{"apis", "metrics.k8s.io", "v1beta1", "pods"}
	if namespace != metav1.NamespaceAll {
		path = []string{"apis", "metrics.k8s.io", "v1beta1", "namespaces", namespace, "pods"}
	}
	body, err := u.client.Get().AbsPath(path...).Param("labelSelector", o.LabelSelector).SetHeader("Accept", "application/json").DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("ask for metrics of pods: %w", err)
	}
	list := new(v1beta1.PodMetricsList)
	if err := json.Unmarshal(body, list); err != nil {
		return nil, fmt.Errorf("read metrics of pods: %w", err)
	}
	return list, nil
}
