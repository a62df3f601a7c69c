"""Registers the detection package: scenes, detectors, boxes, fed3d."""

BRINGS = {
    "kind of data": {"fedstill.detection.scene_kind": ("scene",)},
    "data set": {
        "fedstill.detection.scene_files": ("kitti", "scannet", "scenes", "sunrgbd"),
        "fedstill.detection.scene_sets": ("rooms",),
        "fedstill.detection.rooms.unlabelled_rooms": ("rooms-pretraining", "rooms-unlabelled"),
    },
    "partition": {"fedstill.detection.scene_partitions": ("class-subset", "room-type")},
    "augmentation": {"fedstill.detection.scene_augmentation": ("scenes",)},
    "model": {
        "fedstill.detection.model": (
            "detr3d",
            "detr3d-lite",
            "detr3d-lite-turned",
            "detr3d-m",
            "detr3d-m-turned",
            "detr3d-turned",
            "small-detr3d-lite",
        ),
    },
    "section of an experiment": {"fedstill.detection.detection_section": ("detection",)},
    "task": {"fedstill.detection.detection_task": ("detection",)},
    "objective": {"fedstill.detection.distillation": ("detector",)},
    "method": {"fedstill.detection.fed3d": ("fed3d",)},
    "artefact of a run": {"fedstill.detection.found_objects": ("detections",)},
    "figures of a study": {"fedstill.detection.study_figures": ("detection",)},
    "report section": {"fedstill.detection.report_section": ("detection",)},
    "figure to turn": {"fedstill.detection.scene_stills": ("scene",)},
    "settings for the reference": {"fedstill.detection.pretraining": ("a pre-training",)},
    "command": {
        "fedstill.detection.detect_command": ("detect",),
        "fedstill.detection.pretrain_command": ("pretrain",),
    },
}
