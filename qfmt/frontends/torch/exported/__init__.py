"""Programs of torch.export: `.pt2` archives, ExportedPrograms and modules from convert_pt2e, read without torch."""
